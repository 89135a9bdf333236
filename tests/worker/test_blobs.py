import numpy as np
import psutil
import pytest

from phalanx_proto import tensors
from phalanx_proto.errors import CorruptData, InvalidRequest, UnknownDigest
from phalanx_worker.blobs import MOST, BlobStore


@pytest.fixture
def store() -> BlobStore:
    return BlobStore(limit=100)


def put(store: BlobStore, data: bytes, digest: str | None = None, size: int = 7) -> str:
    """Send in pieces of ``size`` bytes; returns the digest."""
    digest = digest or tensors.digest_bytes(data)
    arrival = store.receive(digest, len(data))
    offset = 0
    for piece in tensors.chunks(data, size):
        arrival.assembler.add(offset, piece, tensors.checksum(piece))
        offset += len(piece)
    try:
        kept = store.keep(arrival)
    except CorruptData:
        arrival.abandon()
        raise
    if not kept:
        arrival.abandon()
    return digest


def descriptors() -> int:
    return psutil.Process().num_fds()


def test_what_is_put_is_found(store: BlobStore) -> None:
    digest = put(store, b"some bytes of a program")
    assert store.bytes(digest) == b"some bytes of a program"
    store.close()


def test_an_empty_blob_is_a_blob(store: BlobStore) -> None:
    digest = put(store, b"")
    assert store.bytes(digest) == b"" and store.missing([digest]) == []
    assert store.array(digest, "x", "float32", (0, 4))["x"].shape == (0, 4)
    store.close()


def test_missing_ones_are_named_in_order(store: BlobStore) -> None:
    here = put(store, b"here")
    assert store.missing(["b", here, "a"]) == ["b", "a"]
    with pytest.raises(UnknownDigest, match="holds no blob ab; send it first"):
        store.bytes("ab")
    with pytest.raises(UnknownDigest):
        store.array("ab", "x", "float32", (1,))
    store.close()


def test_a_blob_is_read_as_an_array_without_a_copy(store: BlobStore) -> None:
    values = np.arange(6, dtype=np.float64).reshape(2, 3)
    digest = put(store, values.tobytes())
    first, second = (store.array(digest, "x", "float64", (2, 3)) for _ in range(2))
    assert first["x"].tolist() == values.tolist()
    first["x"][0, 0] = 9
    assert second["x"][0, 0] == 9, "one memory"
    first.close()
    second.close()
    store.close()


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float64", (2, 2)), ("float32", (2, 3)), ("float99", (6,)), ("float64", (1 << 40,))]
)
def test_a_shape_that_does_not_fit_is_refused(store: BlobStore, dtype: str, shape: tuple[int, ...]) -> None:
    digest = put(store, bytes(48))
    with pytest.raises(InvalidRequest):
        store.array(digest, "x", dtype, shape)
    store.close()


def test_a_wrong_digest_is_not_stored(store: BlobStore) -> None:
    before = descriptors()
    with pytest.raises(CorruptData, match=r"a blob came as .* its header said abc"):
        put(store, b"bytes", digest="abc")
    assert store.missing(["abc"]) == ["abc"] and descriptors() == before


def test_an_incomplete_blob_is_not_stored(store: BlobStore) -> None:
    arrival = store.receive("abc", 10)
    arrival.assembler.add(0, b"12345", tensors.checksum(b"12345"))
    with pytest.raises(CorruptData, match="5 bytes did not come"):
        store.keep(arrival)
    arrival.abandon()
    assert store.missing(["abc"]) == ["abc"]


def test_storing_twice_is_no_error(store: BlobStore) -> None:
    before = descriptors()
    once = put(store, b"twice")
    held = descriptors()
    assert put(store, b"twice") == once and descriptors() == held
    store.close()
    assert descriptors() == before


def test_the_least_used_go_first(store: BlobStore) -> None:
    first, second = put(store, b"a" * 40), put(store, b"b" * 40)
    store.bytes(first)
    third = put(store, b"c" * 40)
    assert store.missing([first, second, third]) == [second]
    whole = put(store, b"d" * 100)
    assert store.missing([first, third, whole]) == [first, third]
    store.close()


def test_an_array_in_use_outlives_its_blob(store: BlobStore) -> None:
    digest = put(store, b"a" * 40)
    arena = store.array(digest, "x", "uint8", (40,))
    put(store, b"b" * 100)
    assert store.missing([digest]) == [digest] and arena["x"].tobytes() == b"a" * 40
    arena.close()
    store.close()


def test_what_is_larger_than_the_store_is_refused_at_once(store: BlobStore) -> None:
    with pytest.raises(InvalidRequest, match="a blob of 101 bytes is above this worker's limit of 100 bytes"):
        store.receive("abc", 101)


def test_the_number_of_blobs_is_bounded_and_so_are_descriptors(store: BlobStore) -> None:
    before = descriptors()
    digests = [put(store, bytes([number])) for number in range(MOST + 3)]
    assert store.missing(digests) == digests[:3]
    assert descriptors() <= before + 2 * MOST
    store.close()


def test_what_a_run_asked_for_is_not_let_go_for_what_it_sends(store: BlobStore) -> None:
    old, other = put(store, b"o" * 50), put(store, b"p" * 50)
    assert store.missing([old, "new"]) == ["new"]
    put(store, b"n" * 50)
    assert store.missing([old, other]) == [other]
    store.close()
