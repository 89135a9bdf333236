"""Jobs that outlive who asks for them: a directory with the request, and a detached runner that has taken it over."""

import os
import subprocess
import sys
import time
from pathlib import Path

from phalanx_coordinator.job_directory.directory import JobDirectory
from phalanx_coordinator.jobs import cancel as cancel_job
from phalanx_coordinator.jobs.resuming import take_over
from phalanx_coordinator.session import Coordinator
from phalanx_coordinator.waiting import on_thread
from phalanx_proto import job_files, job_lock
from phalanx_proto.errors import OutOfTime, Unavailable
from phalanx_proto.execution import Execution
from phalanx_proto.job_status import JobStatus
from phalanx_proto.requests import Request

STARTING = 60.0
"""Seconds for a runner to take its job over and begin."""
LOOK_EVERY = 0.02
LAST_LINES = 10


async def submit(coordinator: Coordinator, request: Request, path: Path) -> JobStatus:
    """Check a request, write it into the new directory ``path`` and start its runner; the status once it has begun.

    Raises what the request is refused for, before there is a directory; ``Unavailable`` where no runner can be started.
    """
    described = await coordinator.described(request)
    return await _started(JobDirectory.create(path, request, described))


async def resume(coordinator: Coordinator, path: Path, execution: Execution | None = None) -> JobStatus:
    """Start a runner for a job that has none, elsewhere if ``execution`` is given. A complete job stays as it is.

    Raises ``InvalidJob``, ``JobBusy`` where it has a live coordinator, and what it is refused for; then nothing is changed.
    """
    path = job_files.require_job(path)
    if job_files.confirmed_status(path).state == "COMPLETE":
        return job_files.read_status(path)
    directory = await take_over(coordinator, path, execution)
    return await _started(directory)


async def _started(directory: JobDirectory) -> JobStatus:
    """``start``; who is interrupted meanwhile ends the job too, since nothing that was started may stay then."""
    assert directory.path is not None
    path = directory.path
    return await on_thread(lambda: start(directory), lambda status: cancel_job.cancel(path))


def start(directory: JobDirectory) -> JobStatus:
    """Hand a directory on to a runner of its own; the status once that has begun to work, or has ended."""
    directory.waits("its coordinator is being started")
    launch(directory)
    assert directory.path is not None
    return _begun(directory.path)


def launch(directory: JobDirectory) -> None:
    """Hand a directory, with its lock, on to a runner of its own; raises ``Unavailable``."""
    assert directory.path is not None and directory.lock is not None
    lock = directory.lock.descriptor
    command = [sys.executable, "-P", "-m", "phalanx_coordinator.jobs.run_job", str(directory.path), "--lock", str(lock)]
    try:
        with open(directory.path / job_files.LOG, "ab", opener=_private) as log:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", pass_fds=(lock,), timeout=STARTING,
                check=True,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"the coordinator of job {directory.path.name} cannot be started: {error}"
        directory.fail(Unavailable(reason))
        raise Unavailable(f"{reason}; see {directory.path / job_files.LOG}") from None
    finally:
        directory.close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _begun(path: Path) -> JobStatus:
    deadline = time.monotonic() + STARTING
    while time.monotonic() < deadline:
        status, holder = job_files.read_status(path), job_lock.holder(path)
        if status.ended or (status.state != "QUEUED" and holder is not None and holder.runner):
            return status
        if status.state == "COORDINATOR_OFFLINE":
            raise Unavailable(f"the coordinator of job {path.name} ended before it began; {last_lines(path)}")
        time.sleep(LOOK_EVERY)
    raise OutOfTime(
        f"the coordinator of job {path.name} did not begin within {STARTING:.0f} s; phalanx status --job {path} shows whether "
        f"it still does; {last_lines(path)}"
    )


def last_lines(path: Path) -> str:
    """The end of a job's log, for an error message."""
    try:
        text = (path / job_files.LOG).read_bytes()[-4000:].decode(errors="replace")
    except OSError:
        text = ""
    lines = text.splitlines()[-LAST_LINES:]
    return "its log is empty" if not lines else "its log ends with:" + "".join(f"\n    {line}" for line in lines)
