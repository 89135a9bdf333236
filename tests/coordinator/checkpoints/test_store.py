"""Checkpoints on disk: whole or not there, two of them, damage found, and nothing overwritten that should stay."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx_coordinator.checkpoints import files as checkpoint_files
from phalanx_coordinator.checkpoints.files import ARRAYS, MANIFEST
from phalanx_coordinator.checkpoints.store import CheckpointStore
from phalanx_proto.errors import CheckpointRefused, Unavailable
from tests import disks
from tests.coordinator.checkpoint_builders import checkpoint_of, same

FILES = (ARRAYS, MANIFEST)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture
def two(store: CheckpointStore) -> CheckpointStore:
    """Checkpoints of updates 3 and 6."""
    store.save(checkpoint_of(3))
    store.save(checkpoint_of(6))
    return store


def names(store: CheckpointStore) -> list[str]:
    return sorted(os.listdir(store.path))


def test_what_is_read_is_what_was_written(store: CheckpointStore) -> None:
    assert store.newest() is None
    written = checkpoint_of(7)
    store.save(written)
    found = CheckpointStore(store.path).newest()
    assert same(found, written) and found is not None and found.notes == ()
    assert list(found.arrays) == list(written.arrays)


def test_a_person_can_read_the_files(two: CheckpointStore) -> None:
    folder = two.path / "checkpoint-6"
    assert json.loads((folder / MANIFEST).read_text())["checkpoint"]["update"] == 6
    with (folder / ARRAYS).open("rb") as file:
        first = np.load(file)
    assert first.tobytes() == checkpoint_of(6).arrays["parameters"].tobytes()
    assert [path.stat().st_mode & 0o777 for path in (two.path, folder, *sorted(folder.iterdir()))] == [0o700] * 2 + [0o600] * 2


def test_the_newest_two_are_kept(two: CheckpointStore) -> None:
    two.save(checkpoint_of(9))
    assert names(two) == ["checkpoint-6", "checkpoint-9"]
    two.save(checkpoint_of(10))
    assert names(two) == ["checkpoint-10", "checkpoint-9"], "by number and not by name"
    assert same(two.newest(), checkpoint_of(10))


def test_a_checkpoint_of_the_same_update_takes_its_place(two: CheckpointStore) -> None:
    other = checkpoint_of(6, level="tolerance")
    two.save(other)
    assert same(two.newest(), other) and names(two) == ["checkpoint-3", "checkpoint-6"]


def flips(data: bytes, bits: range) -> Iterator[bytes]:
    for place in range(len(data)):
        for bit in bits:
            yield data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def truncations(data: bytes, bits: range) -> Iterator[bytes]:
    yield from (data[:length] for length in range(len(data)))
    yield data + b"\0"
    yield data + b"\n"


@pytest.mark.parametrize("damage", [flips, truncations])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("bits", [range(1), pytest.param(range(1, 8), marks=pytest.mark.slow)], ids=["first bit", "all bits"])
def test_every_damage_is_found_and_the_one_before_is_used(
    two: CheckpointStore, file: str, damage: Callable[[bytes, range], Iterator[bytes]], bits: range
) -> None:
    path, expected = two.path / "checkpoint-6" / file, checkpoint_of(3)
    whole = path.read_bytes()
    for damaged in damage(whole, bits):
        path.write_bytes(damaged)
        found = two.newest()
        assert found is not None and found.update == 3
        assert len(found.notes) == 1 and found.notes[0].startswith("checkpoint-6 is damaged and was not used: ")
    assert same(found, expected)
    path.write_bytes(whole)
    assert same(two.newest(), checkpoint_of(6)) and two.notes == ()


def test_with_both_damaged_there_is_none_and_both_are_named(two: CheckpointStore) -> None:
    (two.path / "checkpoint-6" / ARRAYS).unlink()
    (two.path / "checkpoint-3" / MANIFEST).write_text("{}")
    assert two.newest() is None
    assert two.notes == (
        "checkpoint-6 is damaged and was not used: arrays.npy is not there",
        "checkpoint-3 is damaged and was not used: manifest.json does not match its digest",
    )


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"format": 1, "checkpoint": 3}'])
def test_a_manifest_that_is_none_is_passed_over(two: CheckpointStore, text: bytes) -> None:
    (two.path / "checkpoint-6" / MANIFEST).write_bytes(text)
    found = two.newest()
    assert found is not None and found.update == 3


def test_what_is_no_checkpoint_is_passed_over(two: CheckpointStore) -> None:
    (two.path / "checkpoint-9").write_text("a file")
    (two.path / "checkpoint-8").mkdir()
    shutil.copytree(two.path / "checkpoint-6", two.path / "checkpoint-7")
    for name in ("checkpoint-x", "notes", ".checkpoint-99.new"):
        (two.path / name).mkdir()
    found = two.newest()
    assert same(found, checkpoint_of(6)) and found is not None
    assert [note.split(" is damaged")[0] for note in found.notes] == ["checkpoint-9", "checkpoint-8", "checkpoint-7"]
    assert "the checkpoint of update 6 under another name" in found.notes[2]


def test_a_disk_that_fails_is_damage_and_rights_are_not(two: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    original, failing = Path.read_bytes, OSError(5, "Input/output error")

    def read(path: Path) -> bytes:
        if path.parent.name == "checkpoint-6":
            raise failing
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    found = two.newest()
    assert found is not None and found.update == 3
    assert found.notes == ("checkpoint-6 is damaged and was not used: it cannot be read: Input/output error",)
    failing = PermissionError(13, "Permission denied")
    with pytest.raises(Unavailable, match="checkpoint-6 cannot be read: Permission denied; see who owns it"):
        two.newest()


def test_a_newer_format_is_refused_and_not_taken_for_damage(two: CheckpointStore) -> None:
    before = {path: path.read_bytes() for path in two.path.rglob("*") if path.is_file()}
    path = two.path / "checkpoint-6" / MANIFEST
    before[path] = checkpoint_files.sealed({"anything": "else"}, 2)
    path.write_bytes(before[path])
    with pytest.raises(CheckpointRefused, match="checkpoint-6 has the format 2, and this version of Phalanx reads 1") as caught:
        two.newest()
    assert caught.value.details["field"] == "format"
    assert before == {path: path.read_bytes() for path in two.path.rglob("*") if path.is_file()}


def test_the_one_a_run_goes_on_from_stays_until_two_newer_ones_are_there(two: CheckpointStore) -> None:
    (two.path / "checkpoint-6" / ARRAYS).write_bytes(b"torn")
    again = CheckpointStore(two.path, resumed=3)
    again.save(checkpoint_of(5))
    assert names(again) == ["checkpoint-3", "checkpoint-5"], "the damaged one is gone once another is on disk"
    again.save(checkpoint_of(6))
    assert names(again) == ["checkpoint-5", "checkpoint-6"] and same(again.newest(), checkpoint_of(6))


class Killed(BaseException):
    """What stands for the end of the process."""


CALLS = ("open", "write", "fsync", "mkdir", "rename", "rmdir", "unlink", "listdir")


def die_at(patch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    """Let the ``number``-th call of the system fail, and every later one too: a killed process does nothing more."""
    count = 0

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count >= number and (isinstance(error, Killed) or count == number):
                raise error
            return original(*arguments, **named)

        return call

    for name in CALLS:
        patch.setattr(os, name, failing(getattr(os, name)))


def test_a_kill_at_any_step_of_a_save_leaves_a_sound_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set[str | int]()
    for number in range(1, 200):
        shutil.rmtree(store.path, ignore_errors=True)
        for update in (3, 6):
            CheckpointStore(store.path).save(checkpoint_of(update))
        try:
            with monkeypatch.context() as patch:
                die_at(patch, number, Killed())
                CheckpointStore(store.path).save(checkpoint_of(9))
        except Killed:
            seen.add("killed")
        else:
            break
        found = CheckpointStore(store.path).newest()
        assert found is not None and found.notes == ()
        assert same(found, checkpoint_of(found.update)) and found.update in (6, 9)
        seen.add(found.update)
        later = CheckpointStore(store.path)
        later.save(checkpoint_of(12))
        assert same(later.newest(), checkpoint_of(12)), "what was left behind is in nobody's way"
        assert len(names(later)) == 2
    assert seen == {"killed", 6, 9} and 15 < number < 199


def test_a_failure_at_any_step_of_a_save_is_named_and_leaves_the_last_one(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0
    for number in range(1, 200):
        shutil.rmtree(store.path, ignore_errors=True)
        keeper = CheckpointStore(store.path)
        keeper.save(checkpoint_of(3))
        with monkeypatch.context() as patch:
            die_at(patch, number, OSError(28, "No space left on device"))
            try:
                keeper.save(checkpoint_of(6))
            except Unavailable as error:
                failures += 1
                assert "the checkpoint of update 6 cannot be written: No space left on device" in error.message
                assert "checkpoint-3, is as it was" in error.message
        found = CheckpointStore(store.path).newest()
        assert found is not None and same(found, checkpoint_of(found.update))
        assert not [name for name in names(keeper) if name.endswith(".new")]
        if number > 60:
            break
    assert failures > 10


def test_a_full_disk_leaves_the_last_checkpoint_and_no_part_of_another(tmp_path: Path) -> None:
    with disks.small_disk(tmp_path) as disk:
        store = CheckpointStore(disk.folder / "checkpoints")
        store.save(checkpoint_of(3))
        large = {"parameters": np.zeros(1 << 16)}
        with pytest.raises(
            Unavailable, match=r"update 6 cannot be written: .*; the last one, checkpoint-3, is as it was: make room"
        ):
            store.save(checkpoint_of(6, arrays=large))
        assert names(store) == ["checkpoint-3"]
        assert same(store.newest(), checkpoint_of(3))
        store.save(checkpoint_of(6))
        assert names(store) == ["checkpoint-3", "checkpoint-6"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        Unavailable, match="the checkpoint of update 3 cannot be written: No such file or directory; there is none"
    ):
        CheckpointStore(tmp_path / "absent" / "checkpoints").save(checkpoint_of(3))
