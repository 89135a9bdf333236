"""Cancelling a job from outside, with proof: the answer comes when its coordinator has let go and no process of it is left.

The wish is a file in the job's directory, which any coordinator looks for; one that runs nothing else gets a signal too.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from phalanx_coordinator.job_directory.directory import JobDirectory
from phalanx_coordinator.job_directory.folder import unchangeable
from phalanx_proto import job_files, job_lock
from phalanx_proto.errors import Cancelled, JobBusy, OutOfTime, Unavailable
from phalanx_proto.job_lock import Holder
from phalanx_proto.job_status import JobStatus

PATIENCE = 60.0
"""Seconds for a coordinator to end what it started."""
LOOK_EVERY = 0.05
FORCED = 10.0
"""Seconds for what is left when a runner was killed."""


def cancel(path: Path, patience: float = PATIENCE, forced: float = FORCED) -> JobStatus:
    """End a job; the status when nothing of it is left. One that has ended already stays as it is.

    A runner that does not end within ``patience`` seconds is killed, and its engines and workers end with it. Raises
    ``OutOfTime`` where another process does not, and ``Unavailable`` where a process of the job stays, or its directory
    cannot be written.
    """
    path = job_files.require_job(path)
    if job_files.confirmed_status(path).ended:
        return job_files.read_status(path)
    wish = _Wish(path)
    if not wish.heard:
        return _cancel_unattended(path)
    if not _wait(wish.fulfilled, patience):
        wish.force(patience, forced)
    status = job_files.confirmed_status(path)
    return _require_nothing_left(path, wish.family, job_files.read_status(path) if status.ended else _cancel_unattended(path))


class _Wish:
    """That a job may end, and who has to fulfil it: whoever holds the job, or is handed it meanwhile."""

    def __init__(self, path: Path) -> None:
        self.family: list[psutil.Process] = []
        self._path = path
        self._heard: dict[int, Holder] = {}
        holder = job_lock.holder(path)
        if holder is not None:
            try:
                (path / job_files.CANCEL).touch(mode=0o600)
            except OSError as error:
                if not holder.runner:  # which hears the signal
                    raise unchangeable(path, job_files.CANCEL, error) from None
        self._tell()

    @property
    def heard(self) -> bool:
        """Whether there is anybody who holds the job."""
        return bool(self._heard)

    def _tell(self) -> Holder | None:
        holder = job_lock.holder(self._path)
        if holder is not None and self._heard.get(holder.pid) != holder:
            self._heard[holder.pid] = holder
            waiting = job_files.confirmed_status(self._path).state == "QUEUED"
            self.family += _family(holder) if holder.runner or not waiting else []
            if holder.runner:
                _send(holder, signal.SIGTERM)
        return holder

    def fulfilled(self) -> bool:
        """Runners end with the job; another process only lets go of it."""
        holder = self._tell()
        runs = any(found.runner and found.alive for found in self._heard.values())
        return not runs and (holder is None or job_files.confirmed_status(self._path).ended)

    def force(self, patience: float, forced: float) -> None:
        """Kill a runner; raises ``OutOfTime`` for a process that is not ours to kill."""
        for holder in self._heard.values():
            if holder.runner:
                _send(holder, signal.SIGKILL)
        if not _wait(self.fulfilled, forced):
            pid = next(reversed(self._heard))
            raise OutOfTime(
                f"job {self._path.name} runs in process {pid}, which did not end it within {patience:.0f} s; "
                f"end that process yourself: kill {pid}"
            )


def _cancel_unattended(path: Path) -> JobStatus:
    """Nobody works on it: only the status is wrong."""
    try:
        directory = JobDirectory.open(path)
    except JobBusy:  # it has ended meanwhile
        return job_files.read_status(path)
    try:
        directory.fail(Cancelled("cancelled when nobody worked on it any more; what was accepted before is kept"))
    finally:
        directory.close()
    status = job_files.read_status(path)
    if not status.ended:
        raise Unavailable(
            f"nobody works on job {path.name}, but that it is cancelled cannot be written in {path}; make room there, or let "
            "it be written, and cancel it again"
        )
    return status


def _family(holder: Holder) -> list[psutil.Process]:
    """The processes of the job below its coordinator: all of a runner's, the engines and workers of another process."""
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(holder.pid).children(recursive=True)
        return below if holder.runner else [process for process in below if _is_worker(process)]
    return []


def _is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("phalanx_worker" in word for word in process.cmdline())
    return False


def _there(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _require_nothing_left(path: Path, family: list[psutil.Process], status: JobStatus) -> JobStatus:
    if not _wait(lambda: not any(map(_there, family)), FORCED):
        left = ", ".join(str(process.pid) for process in family if _there(process))
        raise Unavailable(f"job {path.name} is {status.state}, but processes of it are left: {left}; end them with kill")
    return status


def _send(holder: Holder, number: signal.Signals) -> None:
    """Send a signal to that very process, or to none."""
    with contextlib.suppress(ProcessLookupError):
        if not hasattr(os, "pidfd_open"):
            if holder.alive:
                os.kill(holder.pid, number)
            return
        descriptor = os.pidfd_open(holder.pid)
        try:
            if holder.alive:  # the descriptor names that process from here on, whatever becomes of its number
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _wait(true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY)
    return True
