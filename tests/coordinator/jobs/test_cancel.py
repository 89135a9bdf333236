"""What a cancel does with jobs that nobody works on, that have ended, and that do not end."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from phalanx_coordinator.job_directory import directory as job_directory
from phalanx_coordinator.job_directory.directory import JobDirectory
from phalanx_coordinator.jobs.cancel import cancel
from phalanx_proto import job_files, job_lock
from phalanx_proto.errors import OutOfTime, Unavailable, WorkerLost
from phalanx_proto.execution import Local
from phalanx_proto.jobs import Progress, SimulationRequest

REQUEST = SimulationRequest(samples=1000, seed=1, execution=Local(workers=1))
HOLD = """
import sys, time, signal
from pathlib import Path
from phalanx_proto.job_lock import JobLock
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = JobLock.take(Path(sys.argv[1]), runner=sys.argv[3] == "runner")
print("held", flush=True)
time.sleep(600)
"""


def quiet(progress: Progress) -> None:
    """Nobody listens."""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job that claims to run, and that nobody holds."""
    directory = JobDirectory.create(tmp_path / "job", REQUEST, {"format": 1})
    directory.begin({"format": 1, "execution": {"members": [{"name": "a"}]}}, quiet)
    directory.close()
    return tmp_path / "job"


@pytest.fixture
def hold(job: Path) -> "Iterator[subprocess.Popen[str]]":
    """A process that holds the job, and neither looks for the wish nor hears SIGTERM."""
    command = [sys.executable, "-c", HOLD, str(job), "deaf", "runner"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_job_that_nobody_works_on_is_cancelled_at_once(job: Path) -> None:
    status = cancel(job)
    assert (status.state, status.error) == ("CANCELLED", "Cancelled")
    assert "when nobody worked on it any more" in str(status.reason)
    assert [(member.name, member.state) for member in status.members] == [("a", "ended")]
    assert job_lock.holder(job) is None


def test_what_was_accepted_is_still_told_when_it_is_cancelled(tmp_path: Path) -> None:
    directory = JobDirectory.create(tmp_path / "job", REQUEST, {"format": 1})
    directory.begin({"format": 1}, quiet)
    directory.progress(Progress(phase="updates", done=40, total=90, loss=0.5, epoch=3, unit="samples"))
    directory.close()
    status = cancel(tmp_path / "job")
    assert (status.state, status.done, status.total, status.loss, status.epoch) == ("CANCELLED", 40, 90, 0.5, 3)


def test_where_it_cannot_be_written_a_cancel_fails(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(path: Path, document: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(job_directory, "write_whole", no_room)
        with pytest.raises(Unavailable, match="nobody works on job job, but that it is cancelled cannot be written"):
            cancel(job)
    assert str(job_files.read_status(job).reason).startswith("it was cancelled, and its status could not be written then: ")
    assert cancel(job).state == "CANCELLED"


def test_what_has_ended_stays_as_it_is(job: Path) -> None:
    directory = JobDirectory.open(job)
    directory.fail(WorkerLost("worker b is gone"))
    directory.close()
    before = (job / "status.json").read_bytes()
    assert cancel(job).state == "FAILED"
    assert (job / "status.json").read_bytes() == before


def test_a_runner_that_does_not_end_is_killed(job: Path, hold: "subprocess.Popen[str]") -> None:
    assert job_files.read_status(job).pid == hold.pid
    assert cancel(job, patience=0.3).state == "CANCELLED"
    assert hold.wait(10) == -9


def test_a_process_that_does_more_than_this_job_is_not_touched_but_named(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", HOLD, str(job), "hears", "another"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(
            OutOfTime, match=rf"runs in process {process.pid}, .* end that process yourself: kill {process.pid}"
        ):
            cancel(job, patience=0.3, forced=0.3)
        assert process.poll() is None
        assert (job / "cancel").exists()
        process.kill()


def test_a_number_that_another_process_has_now_is_not_signalled(job: Path, hold: "subprocess.Popen[str]") -> None:
    text = json.loads((job / "lock").read_text())
    (job / "lock").write_text(json.dumps({**text, "began": "another moment"}))
    assert job_lock.holder(job) is None
    assert job_files.read_status(job).state == "COORDINATOR_OFFLINE"
    assert psutil.pid_exists(hold.pid) and hold.poll() is None


def test_a_wish_before_a_runner_has_begun_is_for_that_runner(tmp_path: Path) -> None:
    directory = JobDirectory.create(tmp_path / "job", REQUEST, {"format": 1})
    (tmp_path / "job" / "cancel").touch()
    assert directory.lock is not None
    heir = JobDirectory.open(tmp_path / "job", handed_on=os.dup(directory.lock.descriptor))
    directory.close()
    heir.begin({"format": 1}, quiet)
    assert heir.cancel_asked()
    heir.fail(WorkerLost("gone"))
    heir.close()
    again = JobDirectory.open(tmp_path / "job")
    assert not again.cancel_asked()
    again.close()
