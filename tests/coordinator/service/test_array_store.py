"""Arrays on a service's disk: whole or not at all, once, and within a bound."""

import hashlib
import os
from pathlib import Path

import pytest

from phalanx_coordinator.service.array_store import ArrayStore
from phalanx_proto import tensors
from phalanx_proto.errors import CorruptData, InvalidRequest, UnknownDigest


def put(store: ArrayStore, data: bytes, digest: str | None = None) -> bool:
    arrival = store.receive(digest or hashlib.sha256(data).hexdigest(), len(data))
    try:
        for offset in range(0, len(data), 7):
            piece = data[offset : offset + 7]
            arrival.add(offset, piece, tensors.checksum(piece))
        return store.keep(arrival)
    finally:
        arrival.abandon()


def test_an_array_is_kept_once(tmp_path: Path) -> None:
    store, data = ArrayStore(tmp_path), bytes(range(100))
    digest = hashlib.sha256(data).hexdigest()
    assert store.missing([digest]) == [digest]
    assert put(store, data)
    assert not put(store, data)
    assert store.missing([digest]) == []
    assert bytes(store.read(digest)) == data
    assert [path.name for path in tmp_path.iterdir()] == [digest]


def test_what_does_not_come_as_it_should_leaves_nothing(tmp_path: Path) -> None:
    store = ArrayStore(tmp_path)
    with pytest.raises(CorruptData, match="did not come as its header said"):
        put(store, b"abc", hashlib.sha256(b"abd").hexdigest())
    arrival = store.receive("ab" * 32, 10)
    with pytest.raises(CorruptData, match="does not follow"):
        arrival.add(3, b"abc", tensors.checksum(b"abc"))
    with pytest.raises(CorruptData, match="checksum"):
        arrival.add(0, b"abc", 1)
    arrival.abandon()
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_no_digests_reach_no_file(tmp_path: Path) -> None:
    store = ArrayStore(tmp_path / "arrays")
    (tmp_path / "secret").write_text("x")
    for name in ("../secret", "", "AB" * 32, "a" * 63):
        with pytest.raises(InvalidRequest, match="is not a SHA-256"):
            store.read(name)
    with pytest.raises(UnknownDigest):
        store.read("ab" * 32)
    with pytest.raises(InvalidRequest, match="above this service's limit"):
        ArrayStore(tmp_path / "arrays", limit=10).receive("ab" * 32, 11)


def test_a_damaged_array_is_put_again(tmp_path: Path) -> None:
    store = ArrayStore(tmp_path)
    put(store, b"abc")
    digest = hashlib.sha256(b"abc").hexdigest()
    (tmp_path / digest).write_bytes(b"abd")
    with pytest.raises(CorruptData, match="put it again"):
        store.read(digest)
    assert store.missing([digest]) == [digest]


def test_the_least_used_go_first(tmp_path: Path) -> None:
    store = ArrayStore(tmp_path, limit=25)
    kept = [bytes([number]) * 10 for number in range(3)]
    digests = [hashlib.sha256(data).hexdigest() for data in kept]
    for age, (data, digest) in enumerate(zip(kept[:2], digests, strict=False)):
        put(store, data)
        os.utime(tmp_path / digest, (1000 + age, 1000 + age))
    assert store.missing([digests[0]]) == []  # asked for, so used now
    put(store, kept[2])
    assert store.missing(digests) == [digests[1]]
