"""A job's directory: new, written whole file by whole file, and with a state that says how it ended."""

import asyncio
import errno
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from phalanx_coordinator import output
from phalanx_coordinator.output import OutputDirectory, write_whole
from phalanx_proto.errors import Cancelled, InvalidRequest, Unavailable, WorkerLost
from phalanx_proto.jobs import Progress

MANIFEST = {"format": 1, "kind": "fit"}


def quiet(progress: Progress) -> None:
    """Nobody listens."""


def create(folder: Path) -> OutputDirectory:
    return OutputDirectory.create(folder / "job", MANIFEST, quiet)


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / "job" / name).read_text("utf-8"))


def test_manifest_and_status_are_there_before_the_work_begins(tmp_path: Path) -> None:
    create(tmp_path)
    assert read(tmp_path, "run-manifest.json") == MANIFEST
    status = read(tmp_path, "status.json")
    assert (status["state"], status["reason"], status["phase"], status["pid"]) == ("RUNNING", None, "starting", os.getpid())
    assert status["total"] is None
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["run-manifest.json", "status.json"]


def test_the_directory_must_be_new(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with pytest.raises(InvalidRequest, match="is there already; name a new one"):
        create(tmp_path)
    assert list((tmp_path / "job").iterdir()) == []


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be made: No such file or directory"):
        create(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="cannot be made: Not a directory"):
        create(tmp_path / "file")


def test_without_a_path_progress_is_only_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[Progress] = []
    directory = OutputDirectory.create(None, MANIFEST, told.append)
    directory.progress(Progress(phase="updates", done=1, total=2))
    directory.finish({}, {})
    directory.fail(WorkerLost("gone"))
    assert [progress.done for progress in told] == [1]
    assert list(tmp_path.iterdir()) == []


def test_a_status_is_written_at_each_phase_and_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    directory = create(tmp_path)
    directory.progress(Progress(phase="updates", done=1, total=9))
    assert (read(tmp_path, "status.json")["phase"], read(tmp_path, "status.json")["done"]) == ("updates", 1)
    directory.progress(Progress(phase="updates", done=2, total=9))
    assert read(tmp_path, "status.json")["done"] == 1
    now += output.STATUS_EVERY + 0.01
    directory.progress(Progress(phase="updates", done=3, total=9, loss=0.5, epoch=1, validation_loss=0.25))
    status = read(tmp_path, "status.json")
    assert (status["done"], status["total"], status["loss"], status["epoch"]) == (3, 9, 0.5, 1)
    assert (status["validation_loss"], status["seconds"]) == (0.25, 0.51)


def test_a_score_that_is_not_finite_is_not_a_number_in_the_status(tmp_path: Path) -> None:
    directory = create(tmp_path)
    directory.progress(Progress(phase="updates", done=1, validation_loss=float("inf"), loss=float("nan")))
    status = read(tmp_path, "status.json")
    assert (status["validation_loss"], status["loss"]) == (None, None)


def test_the_result_is_there_before_the_state_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = create(tmp_path)
    written: list[str] = []
    monkeypatch.setattr(output, "write_whole", lambda path, document: written.append(path.name))
    directory.finish({"kind": "fit"}, MANIFEST)
    assert written == ["run-manifest.json", "result.json", "status.json"]


def test_a_finished_job(tmp_path: Path) -> None:
    create(tmp_path).finish({"kind": "fit"}, {**MANIFEST, "level": "bitwise"})
    assert read(tmp_path, "result.json") == {"kind": "fit"}
    assert read(tmp_path, "run-manifest.json")["level"] == "bitwise"
    status = read(tmp_path, "status.json")
    assert (status["state"], status["pid"], status["reason"]) == ("COMPLETE", None, None)


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (WorkerLost("worker b was ended by SIGKILL", private="/home/ada/x"), "FAILED", "worker b was ended by SIGKILL"),
        (OSError("no space"), "FAILED", "OSError: no space"),
        (Cancelled("the work was cancelled"), "CANCELLED", "the work was cancelled"),
        (asyncio.CancelledError(), "CANCELLED", "interrupted"),
        (KeyboardInterrupt(), "CANCELLED", "interrupted"),
    ],
)
def test_a_job_that_ended_without_a_result_says_how(tmp_path: Path, error: BaseException, state: str, reason: str) -> None:
    create(tmp_path).fail(error)
    status = read(tmp_path, "status.json")
    assert (status["state"], status["reason"], status["pid"]) == (state, reason, None)
    assert not (tmp_path / "job" / "result.json").exists()


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    write_whole(path, {"a": 1})
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def _full(descriptor: int) -> None:
    raise OSError("no space left")


def test_what_cannot_be_written_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_whole(path, {"a": 1})
    with pytest.raises(ValueError, match="Out of range float values"):
        write_whole(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert path.read_text().endswith("}\n")


def test_a_directory_that_disappears_ends_the_job_by_name(tmp_path: Path) -> None:
    directory = create(tmp_path)
    shutil.rmtree(tmp_path / "job")
    with pytest.raises(Unavailable, match=r"status.json cannot be written in the output directory .*job: No such file"):
        directory.progress(Progress(phase="updates", done=1, total=9))
    directory.fail(WorkerLost("this is what counts, and it is not hidden by another error"))


def test_a_result_that_cannot_be_written_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, whole = create(tmp_path), output.write_whole

    def no_room(path: Path, document: Mapping[str, Any]) -> None:
        if path.name == "result.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(path, document)

    monkeypatch.setattr(output, "write_whole", no_room)
    with pytest.raises(Unavailable, match=r"result.json cannot be written .*No space left on device; the job ends without"):
        directory.finish({}, MANIFEST)
    assert read(tmp_path, "status.json")["state"] == "FAILED"
