"""What bulk reads and writes is what protobuf reads and writes."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from phalanx_proto import bulk
from phalanx_proto.errors import CorruptData
from phalanx_proto.tensors import checksum
from phalanx_proto.v1 import coordinator_service_pb2, worker_service_pb2
from phalanx_proto.v1.tensor_pb2 import Chunk
from phalanx_proto.v1.worker_service_pb2 import PutBlobRequest, TrainResponse

RESPONSES = st.builds(
    TrainResponse,
    update=st.integers(0, 2**64 - 1),
    parts=st.lists(st.builds(worker_service_pb2.NodePart, lo=st.integers(0, 9))),
)


def written(message: TrainResponse, payload: bytes) -> bytes:
    """By protobuf alone."""
    whole = TrainResponse(payload=payload)
    whole.MergeFrom(message)
    return whole.SerializeToString()


def decoded(data: bytes) -> tuple[Any, bytes]:
    message, payload = bulk.decoder(TrainResponse)(data)
    return message, bytes(payload)


def read(data: bytes) -> tuple[TrainResponse, bytes]:
    """By protobuf alone."""
    message = TrainResponse.FromString(data)
    payload, message.payload = message.payload, b""
    return message, payload


@given(RESPONSES, st.lists(st.binary(max_size=300)))
def test_it_writes_and_reads_what_protobuf_does(message: TrainResponse, pieces: list[bytes]) -> None:
    data = bulk.encode((message, [memoryview(piece) for piece in pieces]))
    assert data == written(message, b"".join(pieces))
    assert decoded(data) == (message, b"".join(pieces))


@given(RESPONSES, st.binary(min_size=1, max_size=300), RESPONSES, st.binary(max_size=200))
def test_fields_may_come_in_any_order_and_twice(first: TrainResponse, a: bytes, second: TrainResponse, b: bytes) -> None:
    data = first.SerializeToString() + written(second, a) + written(first, b)
    assert decoded(data) == read(data)


@given(RESPONSES, st.binary(max_size=140), st.data())
def test_what_is_cut_or_changed_is_refused_where_protobuf_refuses(
    message: TrainResponse, payload: bytes, data: st.DataObject
) -> None:
    broken = bytearray(written(message, payload))
    if broken and data.draw(st.booleans()):
        broken[data.draw(st.integers(0, len(broken) - 1))] ^= data.draw(st.integers(1, 255))
    broken = broken[: data.draw(st.integers(0, len(broken)))]
    check(bytes(broken))


@example(bulk.TAG + b"\x83\x80\x80\x80\x80\x00abc")
@example(bulk.TAG + b"\x83" + b"\x80" * 8 + b"\x02abc")
@example(bulk.TAG + b"\x83" + b"\x80" * 8 + b"\x01abc")
@example(bulk.TAG + b"\x83" + b"\x80" * 9 + b"\x00abc")
@given(st.binary(max_size=40).map(lambda data: bulk.TAG + data))
def test_bytes_that_are_no_message(data: bytes) -> None:
    check(data)


def check(data: bytes) -> None:
    """The same message, or none at all."""
    try:
        expected = read(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            decoded(data)
    else:
        assert decoded(data) == expected


def test_large_pieces_are_joined_from_where_they_lie() -> None:
    part = memoryview(bytes(range(256)) * 8192)
    message = PutBlobRequest()
    bulk.fill(message.chunk, 5, part)
    assert message.chunk == Chunk(offset=5, length=2 << 20, checksum=checksum(part))
    found, payload = bulk.decoder(PutBlobRequest)(bulk.encode((message, [part])))
    assert found == message and payload == part and payload.obj is not part.obj


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([3, 4], [b"abc", b"defg"]),
        ([0, 7, 0], [b"", b"abcdefg", b""]),
        ([3], None),
        ([], None),
        ([3, 5], None),
        ([1 << 63], None),
    ],
)
def test_a_payload_is_its_chunks_one_after_another(lengths: list[int], found: list[bytes] | None) -> None:
    chunks = [Chunk(length=length) for length in lengths]

    def split() -> list[bytes]:
        return [bytes(piece) for piece in bulk.pieces(chunks, memoryview(b"abcdefg"))]

    if found is not None:
        assert split() == found
        return
    with pytest.raises(CorruptData, match="payload of 7"):
        split()


def kinds_with_chunks() -> Iterator[Any]:
    for file in (worker_service_pb2, coordinator_service_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield from (kind for kind in (method.input_type, method.output_type) if has_chunk(kind))


def has_chunk(kind: Any) -> bool:
    parts = [field.message_type for field in kind.fields if field.message_type is not None]
    return Chunk.DESCRIPTOR in parts or any(has_chunk(part) for part in parts)


def test_every_message_with_chunks_has_its_payload_first() -> None:
    kinds = list(kinds_with_chunks())
    assert sorted(kind.name for kind in kinds) == [
        "GetResultResponse", "PredictResponse", "PutArrayRequest", "PutBlobRequest", "TrainRequest", "TrainResponse",
    ]  # fmt: skip
    for kind in kinds:
        field = kind.fields_by_name["payload"]
        assert (field.number, field.type, field.containing_oneof) == (1, field.TYPE_BYTES, None)
