import hashlib
import pickle
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from phalanx_proto import tensors
from phalanx_proto.errors import CorruptData, InvalidRequest

DTYPES = get_args(tensors.TensorType)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)])
def test_there_and_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
    name, wire_shape, data = tensors.encode(array)
    assert (name, wire_shape, data.nbytes) == (dtype, shape, array.nbytes)
    found = tensors.decode(name, wire_shape, bytes(data))
    assert found.dtype == array.dtype and found.shape == shape
    assert np.array_equal(found, array)


def test_bytes_are_little_endian_and_row_major() -> None:
    array = np.array([[1, 2], [3, 4]], np.int32)
    expected = bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0])
    assert bytes(tensors.encode(array)[2]) == expected
    assert bytes(tensors.encode(array.astype(">i4"))[2]) == expected
    assert bytes(tensors.encode(np.asfortranarray(array))[2]) == expected


def test_encoding_and_decoding_copy_nothing() -> None:
    array = np.zeros(4)
    data = tensors.encode(array)[2]
    found = tensors.decode("float64", [4], data)
    array[2] = 7.0
    assert found[2] == 7.0
    assert not tensors.decode("uint8", [2], b"ab").flags.writeable


@pytest.mark.parametrize("array", [np.array([object()]), np.array(["a"]), np.zeros(2, bool), np.zeros(2, np.float16)])
def test_other_dtypes_do_not_travel(array: NDArray[Any]) -> None:
    with pytest.raises(InvalidRequest, match="do not travel"):
        tensors.encode(array)


@pytest.mark.parametrize(
    ("dtype", "shape", "error"),
    [
        ("object", [1], InvalidRequest),
        ("f4", [2], InvalidRequest),
        ("float32", [-2], InvalidRequest),
        ("float32", [1] * 33, InvalidRequest),
        ("uint8", [2**40, 2**40], InvalidRequest),
        ("uint8", [9], InvalidRequest),
        ("float32", [1], CorruptData),
        ("float32", [], CorruptData),
        ("uint8", [0], CorruptData),
    ],
)
def test_what_cannot_be_decoded(dtype: str, shape: list[int], error: type[Exception]) -> None:
    with pytest.raises(error):
        tensors.decode(dtype, shape, pickle.dumps(1)[:8].ljust(8), limit=8)


def test_digest_is_of_dtype_shape_and_bytes() -> None:
    array: NDArray[Any] = np.array([[1.0, 2.0]], np.float32)
    assert tensors.digest(array) == hashlib.sha256(b"float32[1, 2]\n" + array.tobytes()).hexdigest()
    others: list[NDArray[Any]] = [array.T, array.reshape(2), array.view(np.int32), array.astype(np.float64), -array]
    assert len({tensors.digest(other) for other in [array, *others]}) == 6
    assert tensors.digest(np.array([0.0])) != tensors.digest(np.array([-0.0]))


def test_fingerprint_keeps_order_tag_and_borders_apart() -> None:
    a, b = np.zeros(2), np.ones(2)
    found = [
        tensors.fingerprint(a, b, tag="x"),
        tensors.fingerprint(b, a, tag="x"),
        tensors.fingerprint(a, b, tag="y"),
        tensors.fingerprint(np.concatenate([a, b]), tag="x"),
        tensors.fingerprint(a, tag="x"),
    ]
    assert len(set(found)) == 5
    assert found[0] == tensors.fingerprint(a.copy(), b.copy(), tag="x")


def test_digest_bytes_and_checksum_known_answers() -> None:
    assert tensors.digest_bytes(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert tensors.checksum(b"") == 0x2D06800538D394C2  # XXH3_64bits of nothing, from the xxHash specification


def send(data: bytes, size: int, assembler: tensors.Assembler) -> None:
    for chunk in tensors.chunks(data, size):
        assembler.add(assembler.received, chunk, tensors.checksum(chunk))


@given(st.binary(max_size=200), st.integers(1, 64))
def test_chunks_come_together_again(data: bytes, size: int) -> None:
    assert all(0 < len(chunk) <= size for chunk in tensors.chunks(data, size))
    own, out = tensors.Assembler(len(data)), bytearray(len(data) + 3)
    send(data, size, own)
    assert own.complete and bytes(own.finish()) == data
    send(data, size, tensors.Assembler(len(data), out=out))
    assert bytes(out) == data + bytes(3)


def test_chunks_are_views_of_the_default_size() -> None:
    array = np.zeros(tensors.CHUNK // 8 + 1)
    first, second = tensors.chunks(tensors.encode(array)[2])
    assert (len(first), len(second)) == (tensors.CHUNK, 8)
    array[0] = 1.0
    assert bytes(first[:8]) == np.float64(1.0).tobytes()
    with pytest.raises(InvalidRequest):
        tensors.chunks(b"a", 0)


def test_an_array_is_assembled_in_place() -> None:
    source, target = np.arange(10.0), np.zeros(10)
    assembler = tensors.Assembler(80, out=target.data)
    send(bytes(tensors.encode(source)[2]), 24, assembler)
    assert np.array_equal(source, target)


@pytest.mark.parametrize(
    ("offset", "data", "fault"),
    [
        (0, b"abc", "overlaps"),
        (3, b"abc", "overlaps"),
        (5, b"abc", "gap"),
        (-1, b"abc", "overlaps"),
        (4, b"abcdefg", "runs over"),
        (4, b"", "empty"),
    ],
)
def test_a_chunk_that_does_not_fit_is_refused_by_offset(offset: int, data: bytes, fault: str) -> None:
    assembler = tensors.Assembler(10)
    assembler.add(0, b"0123", tensors.checksum(b"0123"))
    with pytest.raises(CorruptData, match=f"offset {offset} .*{fault}") as caught:
        assembler.add(offset, data, tensors.checksum(data))
    assert caught.value.details["offset"] == offset
    assembler.add(4, b"456789", tensors.checksum(b"456789"))
    assert bytes(assembler.finish()) == b"0123456789"


def test_a_flipped_bit_and_a_missing_end_are_noticed() -> None:
    assembler = tensors.Assembler(4)
    with pytest.raises(CorruptData, match=r"offset 0 .*checksum"):
        assembler.add(0, b"abcd", tensors.checksum(b"abce"))
    with pytest.raises(CorruptData, match=r"offset 0 .*missing"):
        assembler.finish()


def test_nothing_is_complete_at_once_and_may_come_as_one_empty_chunk() -> None:
    assembler = tensors.Assembler(0)
    assembler.add(0, b"", tensors.checksum(b""))
    assert assembler.complete and bytes(assembler.finish()) == b""


@pytest.mark.parametrize(
    "make",
    [
        lambda: tensors.Assembler(-1),
        lambda: tensors.Assembler(11, limit=10),
        lambda: tensors.Assembler(4, out=bytearray(3)),
        lambda: tensors.Assembler(4, out=memoryview(b"abcd")),
    ],
)
def test_memory_that_cannot_hold_it_is_refused(make: Callable[[], tensors.Assembler]) -> None:
    with pytest.raises(InvalidRequest):
        make()
