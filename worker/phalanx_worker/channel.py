"""Framed messages between a pool and its engine processes, over a Unix socket pair.

A message is a JSON object, an optional payload of bytes, and optional file descriptors. Frame: two little-endian uint32
(JSON length, payload length), the JSON, the payload. Descriptors ride on the first byte. Never pickle: an engine runs
programs that came from elsewhere.
"""

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx_proto.errors import CorruptData

HEADER = struct.Struct("<II")
MAXIMUM = 1 << 30
"""Bytes of one payload; larger values travel in an arena."""
DESCRIPTORS = 8
CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message: ``body`` of JSON values, ``payload`` bytes, received ``descriptors``."""

    body: dict[str, Any]
    payload: bytes = b""
    descriptors: tuple[int, ...] = field(default=())


def encode(body: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """The bytes of one frame."""
    text = json.dumps(body, separators=(",", ":")).encode()
    if len(payload) > MAXIMUM:
        raise CorruptData(f"a message payload of {len(payload)} bytes is above the limit of {MAXIMUM}")
    return HEADER.pack(len(text), len(payload)) + text + payload


def send(sock: socket.socket, body: Mapping[str, Any], payload: bytes = b"", descriptors: Sequence[int] = ()) -> None:
    """Send one frame on a blocking socket."""
    frame = encode(body, payload)
    if descriptors:
        sent = socket.send_fds(sock, [frame], list(descriptors))
        frame = frame[sent:]
    if frame:
        sock.sendall(frame)


class Decoder:
    """Turns received bytes and descriptors into messages, however they were cut."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._descriptors: list[int] = []

    def feed(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Add what one receive returned."""
        self._buffer += data
        self._descriptors += descriptors

    def next(self) -> Message | None:
        """The next whole message, or None."""
        if len(self._buffer) < HEADER.size:
            return None
        text_length, payload_length = HEADER.unpack_from(self._buffer)
        if max(text_length, payload_length) > MAXIMUM:
            raise CorruptData(f"a frame announces {max(text_length, payload_length)} bytes; the peer is not an engine")
        end = HEADER.size + text_length + payload_length
        if len(self._buffer) < end:
            return None
        middle = HEADER.size + text_length
        body = json.loads(self._buffer[HEADER.size : middle])
        payload = bytes(self._buffer[middle:end])
        del self._buffer[:end]
        descriptors, self._descriptors = tuple(self._descriptors), []
        return Message(body=body, payload=payload, descriptors=descriptors)

    def close(self) -> None:
        """Close descriptors that no message claimed."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


def receive(sock: socket.socket, decoder: Decoder) -> Message | None:
    """The next message from a blocking socket; None at its end. Raises TimeoutError as the socket does."""
    while (message := decoder.next()) is None:
        data, descriptors, _, _ = socket.recv_fds(sock, 1 << 16, DESCRIPTORS, CLOSE_ON_EXEC)
        if not data:
            return None
        decoder.feed(data, descriptors)
    return message
