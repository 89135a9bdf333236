"""Messages whose payload is not copied through protobuf. On the wire they are byte for byte what protobuf writes and reads.

Protobuf copies every byte of a message into an arena, and out of it again, at each end. A payload is field 1, so it comes
first: the bytes of a message are the payload's tag and length, the payload, and all other fields. A message of such a kind is
*sent* as (message, pieces), where the message's own payload is empty and the pieces lie wherever they are, and *received* as
(message, payload), where the payload lies in what came.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from phalanx_proto.rpc import grpc

from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from phalanx_proto.errors import CorruptData
from phalanx_proto.tensors import checksum
from phalanx_proto.v1.tensor_pb2 import Chunk

Sent = tuple[Message, Sequence[memoryview]]
FIELD = "payload"
TAG = b"\x0a"
"""Of field 1, of bytes."""
LARGE = 1 << 20
"""Bytes of a payload from which on it matters where freed memory goes."""
KEPT_BELOW = (32 << 20) - (1 << 16)
"""Bytes of the largest block that glibc takes as a sign to keep such blocks."""


def fill(chunk: Chunk, offset: int, piece: memoryview) -> None:
    """Describe one piece of a value; in place, since every message that is put into another is copied."""
    chunk.offset, chunk.length, chunk.checksum = offset, piece.nbytes, checksum(piece)


def pieces(chunks: Iterable[Chunk], payload: memoryview) -> Iterator[memoryview]:
    """The bytes of each chunk; CorruptData where chunks and payload differ in length."""
    start = 0
    for chunk in chunks:
        end = start + chunk.length
        if end > payload.nbytes:
            raise CorruptData(f"chunks of {end} bytes and more came with a payload of {payload.nbytes}")
        yield payload[start:end]
        start = end
    if start != payload.nbytes:
        raise CorruptData(f"a payload of {payload.nbytes} bytes came with chunks of {start}")


def encode(sent: Sent) -> bytes:
    """The bytes of a message and its payload, each copied once."""
    message, parts = sent
    length = parts[0].nbytes if len(parts) == 1 else sum(part.nbytes for part in parts)
    if not length:
        return message.SerializeToString()
    if length >= LARGE:
        _keep_freed_memory()
    return b"".join((_head(length), *parts, message.SerializeToString()))


def decoder(kind: type[Message]) -> Callable[[bytes], tuple[Message, memoryview]]:
    """What reads messages of a kind; DecodeError for bytes that are none."""

    def decode(data: bytes) -> tuple[Message, memoryview]:
        view = memoryview(data)
        payload = view[:0]
        if data[:1] == TAG:
            start, length = _length(data)
            payload, view = view[start : start + length], view[start + length :]
            if payload.nbytes != length:
                raise DecodeError(f"a payload of {length} bytes ends after {payload.nbytes}")
            if length >= LARGE:
                _keep_freed_memory()
        message = kind.FromString(view)  # type: ignore[arg-type]  # any buffer is taken
        other: bytes = getattr(message, FIELD)
        if other:  # of a writer that does not keep to the order; the last one counts, as ever in protobuf
            setattr(message, FIELD, b"")
            payload = memoryview(other)
        return message, payload

    return decode


def attach(stub: Any, channel: Any, service: ServiceDescriptor) -> None:
    """Have a generated stub send and receive payloads this way, where a method has them."""
    for method in _carrying(service):
        call = getattr(channel, _form(method))
        made = call(
            f"/{service.full_name}/{method.name}", request_serializer=_serializer(method.input_type),
            response_deserializer=_deserializer(method.output_type),
        )  # fmt: skip
        setattr(stub, method.name, made)


def serve(server: Any, servicer: Any, service: ServiceDescriptor) -> None:
    """Have a server whose servicer was added do the same."""
    handlers = {
        method.name: getattr(grpc, f"{_form(method)}_rpc_method_handler")(
            getattr(servicer, method.name), request_deserializer=_deserializer(method.input_type),
            response_serializer=_serializer(method.output_type),
        )
        for method in _carrying(service)
    }  # fmt: skip
    server.add_registered_method_handlers(service.full_name, handlers)


def _carrying(service: ServiceDescriptor) -> list[MethodDescriptor]:
    return [method for method in service.methods if _carries(method.input_type) or _carries(method.output_type)]


def _carries(kind: Descriptor) -> bool:
    return FIELD in kind.fields_by_name


def _form(method: MethodDescriptor) -> str:
    ends = ("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
    return "_".join(ends)


def _serializer(kind: Descriptor) -> Callable[[Any], bytes]:
    return encode if _carries(kind) else GetMessageClass(kind).SerializeToString


def _deserializer(kind: Descriptor) -> Callable[[bytes], Any]:
    made = GetMessageClass(kind)
    return decoder(made) if _carries(kind) else made.FromString


@functools.lru_cache(maxsize=256)
def _head(length: int) -> bytes:
    """What comes before a payload of so many bytes; kept, since lengths repeat from update to update."""
    found = bytearray(TAG)
    while length > 127:
        found.append(length & 127 | 128)
        length >>= 7
    found.append(length)
    return bytes(found)


def _length(data: bytes) -> tuple[int, int]:
    """(Where the payload starts, its length)."""
    length = 0
    for index, byte in enumerate(data[1:11]):
        length |= (byte & 127) << 7 * index
        if byte < 128:
            return index + 2, length & (1 << 64) - 1  # protobuf too drops what is above
    raise DecodeError("the length of a payload does not end")


@functools.cache
def _keep_freed_memory() -> None:
    """Let the C library keep freed blocks of megabytes for the next message.

    glibc gives such blocks back to the system and takes them anew, which clears every page again and costs as much as copying
    them, until it has seen one of just below 32 MiB freed; then it keeps that much. Nothing is touched here, so it is free.
    """
    bytes(KEPT_BELOW)
