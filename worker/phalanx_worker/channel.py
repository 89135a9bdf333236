"""Framed messages between a pool and its engine processes, over a Unix socket pair.

A message is a JSON object, an optional payload of bytes, and optional file descriptors. Frame: three little-endian uint32
(JSON length, payload length, number of descriptors), the JSON, the payload. Descriptors ride on the first byte; since one
receive may bring the end of a frame and the descriptors of the next, each frame says how many are its own. Never pickle:
an engine runs programs that came from elsewhere.
"""

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx_proto.errors import CorruptData

HEADER = struct.Struct("<III")
MAXIMUM = 1 << 30
"""Bytes of one payload; larger values travel in an arena."""
DESCRIPTORS = 8
"""Descriptors of one message at most."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message: ``body`` of JSON values, ``payload`` bytes, received ``descriptors``."""

    body: dict[str, Any]
    payload: bytes = b""
    descriptors: tuple[int, ...] = field(default=())


def encode(body: Mapping[str, Any], payload: bytes = b"", descriptors: int = 0) -> bytes:
    """The bytes of one frame that so many descriptors go with."""
    text = json.dumps(body, separators=(",", ":")).encode()
    if len(payload) > MAXIMUM:
        raise CorruptData(f"a message payload of {len(payload)} bytes is above the limit of {MAXIMUM}")
    if descriptors > DESCRIPTORS:
        raise CorruptData(f"a message with {descriptors} descriptors is above the limit of {DESCRIPTORS}")
    return HEADER.pack(len(text), len(payload), descriptors) + text + payload


def send(sock: socket.socket, body: Mapping[str, Any], payload: bytes = b"", descriptors: Sequence[int] = ()) -> None:
    """Send one frame on a blocking socket."""
    frame = encode(body, payload, len(descriptors))
    if descriptors:
        sent = socket.send_fds(sock, [frame], list(descriptors))
        frame = frame[sent:]
    if frame:
        sock.sendall(frame)


def _body(text: bytes | bytearray) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        raise CorruptData("a frame holds no JSON; the peer is not an engine") from None
    if not isinstance(body, dict):
        raise CorruptData(f"a frame holds a JSON {type(body).__name__}, not an object")
    return body


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
        """The next whole message, or None; CorruptData if what came is no frame."""
        if len(self._buffer) < HEADER.size:
            return None
        text_length, payload_length, count = HEADER.unpack_from(self._buffer)
        if max(text_length, payload_length) > MAXIMUM:
            raise CorruptData(f"a frame announces {max(text_length, payload_length)} bytes; the peer is not an engine")
        middle = HEADER.size + text_length
        end = middle + payload_length
        if len(self._buffer) < end:
            return None
        if count > len(self._descriptors):
            raise CorruptData(f"a frame announces {count} descriptors, and {len(self._descriptors)} came")
        body, payload = _body(self._buffer[HEADER.size : middle]), bytes(self._buffer[middle:end])
        del self._buffer[:end]
        descriptors, self._descriptors = tuple(self._descriptors[:count]), self._descriptors[count:]
        return Message(body=body, payload=payload, descriptors=descriptors)

    def close(self) -> None:
        """Close descriptors that no message claimed."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


def receive(sock: socket.socket, decoder: Decoder) -> Message | None:
    """The next message from a blocking socket; None at its end. Raises TimeoutError as the socket does."""
    while (message := decoder.next()) is None:
        data, descriptors, _, _ = socket.recv_fds(sock, 1 << 16, DESCRIPTORS)
        for descriptor in descriptors:  # recv_fds ignores the flag that would do this
            os.set_inheritable(descriptor, False)
        if not data:
            return None
        decoder.feed(data, descriptors)
    return message
