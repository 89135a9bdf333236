"""A job's directory: new, written whole file by whole file, and with a state that says how it ended."""

import asyncio
import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from phalanx_coordinator.job_directory import directory as job_directory
from phalanx_coordinator.job_directory import log as job_log
from phalanx_coordinator.job_directory import whole_files
from phalanx_coordinator.job_directory.directory import JobDirectory
from phalanx_coordinator.job_directory.whole_files import write_whole
from phalanx_proto import job_files, job_lock, job_registry
from phalanx_proto.errors import Cancelled, InvalidJob, InvalidRequest, JobBusy, Unavailable, WorkerLost
from phalanx_proto.execution import Local
from phalanx_proto.jobs import Event, MemberStatus, Progress, SimulationOutcome, SimulationRequest, SimulationSeconds
from tests.coordinator.conftest import request_of

MANIFEST = {"format": 1, "kind": "simulation"}


def quiet(progress: Progress) -> None:
    """Nobody listens."""


REQUEST = SimulationRequest(samples=1000, seed=1, execution=Local(workers=1))
OUTCOME = SimulationOutcome(
    samples=1000, hits=786, members=(), seconds=SimulationSeconds(setup=1.0, work=2.0, total=3.0), notes=(),
    manifest={**MANIFEST, "level": "bitwise"},
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_lock_outlives_a_test() -> Iterator[None]:
    yield
    while HELD:
        HELD.pop().close()


HELD: list[JobDirectory] = []


def queued(folder: Path, request: Any = REQUEST) -> JobDirectory:
    HELD.append(JobDirectory.create(folder / "job", request, MANIFEST))
    return HELD[-1]


def create(folder: Path, request: Any = REQUEST) -> JobDirectory:
    directory = queued(folder, request)
    directory.begin(MANIFEST, quiet)
    return directory


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / "job" / name).read_text("utf-8"))


def test_manifest_and_status_are_there_before_the_work_begins(tmp_path: Path) -> None:
    create(tmp_path)
    assert read(tmp_path, "run-manifest.json") == MANIFEST
    status = read(tmp_path, "status.json")
    assert (status["state"], status["reason"], status["phase"], status["pid"]) == ("RUNNING", None, "starting", os.getpid())
    assert status["total"] is None
    names = ["coordinator.log", "events.jsonl", "lock", "request.json", "run-manifest.json", "status.json"]
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == names


def test_the_directory_must_be_new(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "thesis.tex").touch()
    with pytest.raises(InvalidRequest, match="is there already; name a new one"):
        create(tmp_path)
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("locked", [False, True])
def test_what_a_killed_submitter_left_is_as_good_as_new(tmp_path: Path, locked: bool) -> None:
    (tmp_path / "job").mkdir(mode=0o755)
    if locked:
        lock = job_lock.JobLock.take(tmp_path / "job")
        with pytest.raises(InvalidRequest, match="is there already; name a new one"):
            create(tmp_path)
        lock.release()
    create(tmp_path)
    assert job_files.read_status(tmp_path / "job").state == "RUNNING"
    assert stat.S_IMODE((tmp_path / "job").stat().st_mode) == 0o700


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be made: No such file or directory"):
        create(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="cannot be made: Not a directory"):
        create(tmp_path / "file")


def test_without_a_path_progress_is_only_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[Progress] = []
    directory = JobDirectory.create(None, REQUEST, MANIFEST)
    directory.begin(MANIFEST, told.append)
    directory.progress(Progress(phase="updates", done=1, total=2))
    directory.event(Event(time=1.0, kind="lost", member="b"))
    directory.finish(OUTCOME)
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
    now += job_directory.STATUS_EVERY + 0.01
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
    monkeypatch.setattr(job_directory, "write_whole", lambda path, document: written.append(path.name))
    directory.finish(OUTCOME)
    assert written == ["outcome.json", "run-manifest.json", "result.json", "status.json"]


def test_a_finished_job(tmp_path: Path) -> None:
    create(tmp_path).finish(OUTCOME)
    assert read(tmp_path, "result.json")["hits"] == 786
    assert job_files.read_outcome(tmp_path / "job") == OUTCOME
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
    directory, whole = create(tmp_path), whole_files.write_whole

    def no_room(path: Path, document: Mapping[str, Any]) -> None:
        if path.name == "result.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(path, document)

    monkeypatch.setattr(job_directory, "write_whole", no_room)
    with pytest.raises(Unavailable, match=r"result.json cannot be written .*No space left on device; the job ends without"):
        directory.finish(OUTCOME)
    assert read(tmp_path, "status.json")["state"] == "FAILED"


def test_the_directory_is_its_owners_alone(tmp_path: Path) -> None:
    create(tmp_path, request_of())
    assert stat.S_IMODE((tmp_path / "job").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "job").iterdir()} == {0o600}


def test_the_request_is_there_before_it_is_said_that_the_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def noted(write: Callable[[Path, Any], None]) -> Callable[[Path, Any], None]:
        def write_noted(path: Path, value: Any) -> None:
            written.append(path.name)
            write(path, value)

        return write_noted

    for write in (whole_files.write_whole, whole_files.write_arrays):
        monkeypatch.setattr(job_directory, write.__name__, noted(write))
    create(tmp_path, request_of())
    first = ["request.npz", "request.json", "run-manifest.json", "status.json"]
    assert written == [*first, "run-manifest.json", "status.json"]


def test_a_job_that_waits_says_for_what(tmp_path: Path) -> None:
    directory = queued(tmp_path)
    directory.waits("2 of 2 slots are in use")
    status = job_files.read_status(tmp_path / "job")
    assert (status.state, status.reason, status.pid) == ("QUEUED", "2 of 2 slots are in use", None)


def test_a_live_coordinator_keeps_others_out_and_is_named(tmp_path: Path) -> None:
    create(tmp_path)
    holder = job_lock.holder(tmp_path / "job")
    assert holder is not None and (holder.pid, holder.runner, holder.alive) == (os.getpid(), False, True)
    with pytest.raises(JobBusy, match=rf"job job has a live coordinator \(pid {os.getpid()}\)"):
        JobDirectory.open(tmp_path / "job")


def test_what_is_told_without_a_coordinator_is_offline_with_the_last_snapshot(tmp_path: Path) -> None:
    directory = create(tmp_path)
    directory.progress(Progress(phase="samples", done=10, total=90, unit="samples"))
    directory.close()
    status = job_files.read_status(tmp_path / "job")
    assert (status.state, status.pid, status.done, status.total, status.eta) == ("COORDINATOR_OFFLINE", None, 10, 90, None)
    assert "RUNNING in the phase samples" in str(status.reason)


def test_the_lock_is_not_inherited_and_names_no_later_process_with_the_same_number(tmp_path: Path) -> None:
    directory = create(tmp_path)
    assert directory.lock is not None and not os.get_inheritable(directory.lock.descriptor)
    text = json.loads((tmp_path / "job" / "lock").read_text())
    assert not job_lock.Holder(**{**text, "began": "another moment"}).alive
    assert not job_lock.Holder(**{**text, "pid": 2**22 + 1}).alive


def test_a_job_is_taken_over_when_nobody_has_it(tmp_path: Path) -> None:
    first = create(tmp_path)
    first.fail(WorkerLost("worker b is gone"))
    first.close()
    second = JobDirectory.open(tmp_path / "job")
    HELD.append(second)
    assert second.request() == REQUEST
    second.change_execution(Local(workers=2))
    second.begin(MANIFEST, quiet)
    status = job_files.read_status(tmp_path / "job")
    assert (status.state, status.reason, status.error, status.attempts, status.pid) == ("RUNNING", None, None, 2, os.getpid())
    assert [event.kind for event in job_files.read_events(tmp_path / "job")] == ["started", "failed", "started"]
    assert job_files.read_events(tmp_path / "job", after=2)[0].reason == "attempt 2"
    assert second.request().execution == Local(workers=2)


def test_a_job_that_goes_on_shows_where_it_stands_before_its_first_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    members = (MemberStatus(name="a", state="computing", rows=12), MemberStatus(name="b", state="lost"))
    first = create(tmp_path)
    first.progress(Progress(phase="updates", done=40, total=90, loss=0.5, epoch=3, members=members))
    first.fail(WorkerLost("worker b is gone"))
    first.close()
    assert [(m.name, m.state) for m in job_files.read_status(tmp_path / "job").members] == [("a", "ended"), ("b", "lost")]
    second = JobDirectory.open(tmp_path / "job")
    HELD.append(second)
    second.waits("its coordinator is being started")
    queued = job_files.read_status(tmp_path / "job")
    assert (queued.state, queued.done, queued.total, queued.epoch, queued.members) == ("QUEUED", 40, 90, 3, ())
    second.begin(MANIFEST, quiet, Progress(phase="starting", done=30, total=90, loss=0.75, epoch=2))
    now += 5.0
    second.progress(Progress(phase="opening"))
    status = job_files.read_status(tmp_path / "job")
    assert (status.phase, status.done, status.total, status.loss, status.epoch) == ("opening", 30, 90, 0.75, 2)
    second.progress(Progress(phase="updates", done=31, total=90))
    now += 1.0
    second.progress(Progress(phase="updates", done=41, total=90))
    assert job_files.read_status(tmp_path / "job").rate == 10.0


def test_a_simulation_that_waits_counts_samples(tmp_path: Path) -> None:
    queued(tmp_path)
    assert job_files.read_status(tmp_path / "job").unit == "samples"


def kinds(folder: Path) -> list[str]:
    return [event.kind for event in job_files.read_events(folder / "job")]


def test_events_of_a_coordinator_that_was_killed_are_counted_and_a_torn_one_is_cut_off(tmp_path: Path) -> None:
    first = create(tmp_path)
    told = (tmp_path / "job" / "status.json").read_bytes()
    first.event(Event(time=1.0, kind="lost", member="b"))
    first.close()
    (tmp_path / "job" / "status.json").write_bytes(told)  # it was killed before it could say so
    with (tmp_path / "job" / "events.jsonl").open("ab") as file:
        file.write(b'{"time": 2.0, "ki')
    second = JobDirectory.open(tmp_path / "job")
    HELD.append(second)
    second.begin(MANIFEST, quiet)
    assert kinds(tmp_path) == ["started", "lost", "started"]
    assert job_files.read_status(tmp_path / "job").events == 3


def test_an_event_that_cannot_be_flushed_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = create(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _full)
        with pytest.raises(Unavailable, match=r"events.jsonl cannot be written"):
            directory.event(Event(time=1.0, kind="lost", member="b"))
    directory.event(Event(time=1.0, kind="joined", member="b"))
    assert kinds(tmp_path) == ["started", "joined"]


def test_a_line_that_is_damaged_counts_for_nobody(tmp_path: Path) -> None:
    create(tmp_path)
    path = tmp_path / "job" / "events.jsonl"
    for line in (b"x", b"7", b'{"time": "noon", "kind": "lost"}', b"[" * 100_000):
        path.write_bytes(line + b"\n" + path.read_bytes())
    assert (kinds(tmp_path), job_files.read_events(tmp_path / "job", 1)) == (["started"], [])


def test_a_failure_that_no_status_could_tell_is_told_by_its_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = create(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(job_directory, "write_whole", _no_room)
        directory.fail(WorkerLost("worker b is gone"))
    directory.close()
    status = job_files.read_status(tmp_path / "job")
    assert (status.state, status.pid) == ("COORDINATOR_OFFLINE", None)
    assert str(status.reason).startswith("it has failed, and its status could not be written then: worker b is gone; ")
    HELD.append(JobDirectory.open(tmp_path / "job"))
    HELD[-1].begin(MANIFEST, quiet)
    HELD[-1].close()
    assert "did not say why" in str(job_files.read_status(tmp_path / "job").reason)


def _no_room(path: Path, document: Mapping[str, Any]) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["lock", "events.jsonl"])
def test_a_directory_that_cannot_be_written_is_not_taken_over(tmp_path: Path, name: str) -> None:
    create(tmp_path).close()
    path = tmp_path / "job" / name
    path.unlink()
    path.mkdir()  # as good as a read-only file system, and also for root
    with pytest.raises(Unavailable, match=f"{name} cannot be written in the job directory .*: Is a directory; nothing was"):
        JobDirectory.open(tmp_path / "job")


def test_a_complete_job_is_not_taken_over(tmp_path: Path) -> None:
    directory = create(tmp_path)
    directory.finish(OUTCOME)
    directory.close()
    with pytest.raises(JobBusy, match="job job is complete"):
        JobDirectory.open(tmp_path / "job")


def test_a_cancel_is_told_twice_and_ends_as_such(tmp_path: Path) -> None:
    directory = create(tmp_path)
    (tmp_path / "job" / "cancel").touch()
    assert directory.cancel_asked()
    directory.ending(Cancelled("it was cancelled"))
    assert read(tmp_path, "status.json")["state"] == "CANCELLING"
    directory.fail(Cancelled("it was cancelled"))
    assert [read(tmp_path, "status.json")[name] for name in ("state", "error", "reason")] == [
        "CANCELLED", "Cancelled", "it was cancelled",
    ]  # fmt: skip


def test_rate_and_eta_come_from_completed_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    directory = create(tmp_path)
    directory.progress(Progress(phase="updates", done=0, total=9))
    assert [read(tmp_path, "status.json")[name] for name in ("rate", "eta")] == [None, None]
    now += 2.0
    member = MemberStatus(name="a", state="computing", rows=12, latency=0.5)
    directory.progress(Progress(phase="updates", done=4, total=9, members=(member,)))
    status = read(tmp_path, "status.json")
    assert (status["rate"], status["eta"], status["update"], status["updates"]) == (2.0, 2.5, 4, 9)
    assert status["members"] == [{"name": "a", "state": "computing", "rows": 12, "latency": 0.5, "reason": None}]


def test_the_log_has_names_and_times_and_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = create(tmp_path)
    directory.log("b", "hello")
    lines = (tmp_path / "job" / "coordinator.log").read_text().splitlines()
    assert [line.split(": ")[0] for line in lines] == ["coordinator", "b"]
    assert lines[1].endswith("Z hello")
    monkeypatch.setattr(job_log, "LIMIT", 100)
    for _ in range(20):
        directory.log("b", "x" * 40)
    kept = [tmp_path / "job" / name for name in ("coordinator.log", "coordinator.log.1")]
    assert all(0 < path.stat().st_size < 250 for path in kept)


def test_jobs_are_remembered_wherever_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "far").mkdir()
    create(tmp_path / "far")
    assert job_registry.known() == [tmp_path / "far" / "job"]
    shutil.rmtree(tmp_path / "far" / "job")
    assert job_registry.known() == []
    assert list(job_registry.folder().iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda job: (job / "run-manifest.json").unlink(), "is not a job directory: it has no run-manifest.json"),
        (lambda job: (job / "run-manifest.json").write_text('{"form'), "run-manifest.json of .* is damaged"),
        (
            lambda job: (job / "run-manifest.json").write_text('{"format": 9}'),
            "has the format 9, and this version reads up to 1",
        ),
        (lambda job: (job / "run-manifest.json").write_text("{}"), "is damaged: it has no format"),
        (lambda job: (job / "status.json").write_text("[]"), "status.json of .* is damaged"),
        (lambda job: (job / "status.json").write_text('{"state": "ODD"}'), "no known state, but 'ODD'"),
        (shutil.rmtree, "cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_job_is_refused_and_left_alone(tmp_path: Path, spoil: Any, message: str) -> None:
    create(tmp_path).close()
    spoil(tmp_path / "job")
    before = {path.name: path.read_bytes() for path in (tmp_path / "job").glob("*")}
    with pytest.raises(InvalidJob, match=message):
        JobDirectory.open(tmp_path / "job")
    assert {path.name: path.read_bytes() for path in (tmp_path / "job").glob("*")} == before


def test_a_job_whose_status_is_gone_can_be_taken_over(tmp_path: Path) -> None:
    create(tmp_path).close()
    (tmp_path / "job" / "status.json").unlink()
    status = job_files.read_status(tmp_path / "job")
    assert (status.kind, status.state) == ("simulation", "COORDINATOR_OFFLINE")
    HELD.append(JobDirectory.open(tmp_path / "job"))
    assert HELD[-1].request() == REQUEST


def test_a_directory_that_was_moved_is_called_as_it_is(tmp_path: Path) -> None:
    create(tmp_path).close()
    (tmp_path / "job").rename(tmp_path / "night")
    assert job_files.read_status(tmp_path / "night").job == "night"


def test_another_users_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path).close()
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(InvalidJob, match=rf"belongs to another user \(uid {me}\)"):
        JobDirectory.open(tmp_path / "job")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("request.npz", lambda data: data[:-40], "request.npz of .* is damaged"),
        ("request.json", lambda data: data.replace(b'"role": "train"', b'"role": "test"'), "request.json of .* is not the one"),
        ("request.json", lambda data: data.replace(b'"seed": 42', b'"seed": 43'), "request.json of .* is not the one"),
        ("request.json", lambda data: data.replace(b'"abort"', b'"rebalance"'), "request.json of .* is not the one"),
        ("request.json", lambda data: data.replace(b'"digest"', b'"digits"'), "request.json of .* is not the one"),
        ("request.json", lambda data: b"[" * 100_000, "request.json of .* is damaged"),
        ("request.json", lambda data: data.replace(b'"format": 1', b'"format": 2'), "has the format 2"),
        ("request.json", lambda data: b"", "request.json of .* is damaged"),
    ],
)
def test_a_damaged_request_is_refused(tmp_path: Path, name: str, change: Any, message: str) -> None:
    create(tmp_path, request_of()).close()
    path = tmp_path / "job" / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InvalidJob, match=message):
        job_files.read_request(tmp_path / "job")
