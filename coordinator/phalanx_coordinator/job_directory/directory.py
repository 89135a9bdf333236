"""A job's directory as its coordinator writes it; ``phalanx_proto.job_files`` tells what is in it, and reads it.

The request is there before the job runs, the result before anybody is told of it. What is public in it (manifest, status,
result, events) names workers by their aliases, never their endpoints.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from phalanx_coordinator.job_directory.event_file import EventFile
from phalanx_coordinator.job_directory.folder import claim, unchangeable, unwritable
from phalanx_coordinator.job_directory.log import JobLog
from phalanx_coordinator.job_directory.whole_files import write_arrays, write_whole
from phalanx_proto import job_files, job_lock, job_registry, outcomes, requests, result
from phalanx_proto.errors import Cancelled, JobBusy, PhalanxError, Unavailable
from phalanx_proto.execution import Execution
from phalanx_proto.job_lock import JobLock
from phalanx_proto.job_status import JobStatus, State, members_ended
from phalanx_proto.jobs import Event, EventKind, FitRequest, Listener, MemberStatus, Progress, unwatched
from phalanx_proto.pace import Pace
from phalanx_proto.requests import Request

STATUS_EVERY = 0.5
"""Seconds between two statuses while nothing but progress changes."""
HANDING_OVER = 10.0
"""Seconds that the coordinator of a job that has ended may need to be gone."""


class JobDirectory:
    """The directory of one job, held by its coordinator; with no path it only passes progress on."""

    def __init__(self, path: Path | None, kind: str, listener: Listener) -> None:
        self.path = path
        self._listener = listener
        self._began: float | None = None
        self._written = time.monotonic()
        self._earlier = 0.0
        self._former: tuple[MemberStatus, ...] = ()
        """Who took part before, until somebody does again."""
        self._status = JobStatus(job="" if path is None else path.name, kind=kind, state="QUEUED")
        self._last = Progress(phase="starting", unit="updates" if kind == "fit" else "samples")
        self._pace = Pace()
        self.lock: JobLock | None = None
        self.ended = False
        """Whether the end of this attempt was told."""
        self._log = None if path is None else JobLog(path / job_files.LOG)

    @classmethod
    def create(
        cls, path: Path | None, request: Request, manifest: Mapping[str, Any], listener: Listener = unwatched
    ) -> "JobDirectory":
        """Make the directory, which must be (as good as) new, with all that the job needs; QUEUED, and held by this process.

        Raises ``InvalidRequest`` where it cannot be made, ``Unavailable`` where it cannot be written.
        """
        kind = "fit" if isinstance(request, FitRequest) else "simulation"
        found = cls(None if path is None else path.expanduser().absolute(), kind, listener)
        if found.path is not None:
            found.lock = claim(found.path)
            try:
                found._fill(request, manifest)
            except BaseException:
                found.close()
                raise
        return found

    def _fill(self, request: Request, manifest: Mapping[str, Any]) -> None:
        assert self.path is not None
        self.write_request(request)
        self._write(job_files.MANIFEST, manifest)
        self._tell("QUEUED")
        job_registry.remember(self.path)

    @classmethod
    def open(cls, path: Path, *, handed_on: int | None = None) -> "JobDirectory":
        """Take over a job that nobody works on, or whose lock was handed on to this process as an open file.

        Raises ``InvalidJob`` for a directory that cannot be used, ``JobBusy`` where it has a live coordinator or is
        complete, ``Unavailable`` where it cannot be written.
        """
        path = job_files.require_job(path)
        before = job_files.confirmed_status(path)
        try:
            if handed_on is None:
                lock = JobLock.take(path, patience=HANDING_OVER if before.ended else job_lock.PATIENCE)
            else:
                lock = JobLock.inherit(handed_on, path)
        except OSError as error:
            raise unchangeable(path, job_lock.NAME, error) from None
        try:
            status = job_files.confirmed_status(path)
            if status.state == "COMPLETE":
                raise JobBusy(f"job {path.name} is complete; phalanx status --job {path} shows it", state="COMPLETE")
            status = replace(status, events=EventFile(path).mend())
            if handed_on is None:  # a wish that came later is for this attempt
                (path / job_files.CANCEL).unlink(missing_ok=True)
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise unchangeable(path, job_files.EVENTS, error) from None
            raise
        found = cls(path, status.kind, unwatched)
        found.lock, found._earlier = lock, status.seconds
        found._status = replace(status, job=path.name, pid=None, eta=None, rate=None, members=())
        found._former = status.members
        found._last = replace(
            found._last, done=status.done, total=status.total or 0, loss=status.loss, epoch=status.epoch,
            validation_loss=status.validation_loss,
        )  # fmt: skip
        return found

    def begin(self, manifest: Mapping[str, Any], listener: Listener, at: Progress | None = None) -> None:
        """An attempt begins, ``at`` what a checkpoint holds: say so, and with what."""
        self._listener = listener
        self._began, self._pace, self._former = time.monotonic(), Pace(), ()
        self._last = at or Progress(phase="starting", unit=self._last.unit)
        if self.path is None:
            return
        self._write(job_files.MANIFEST, manifest)
        attempts = self._status.attempts + 1
        wanted = manifest.get("execution", {}).get("members", ())
        members = tuple(MemberStatus(name=member["name"], state="starting") for member in wanted)
        self._status = replace(self._status, attempts=attempts, error=None, members=members)
        self.event(Event(time=time.time(), kind="started", reason="" if attempts == 1 else f"attempt {attempts}"))
        self._tell("RUNNING")

    @property
    def checkpoints(self) -> Path | None:
        """The folder of checkpoints; it may not be there yet."""
        return None if self.path is None else self.path / job_files.CHECKPOINTS

    def request(self) -> Request:
        """What is asked for; raises ``InvalidJob``."""
        assert self.path is not None
        return job_files.read_request(self.path)

    def write_request(self, request: Request) -> None:
        """Keep what is asked for; the arrays first, since the document names their digests."""
        document, arrays = requests.to_document(request)
        if arrays:
            self._write_arrays(job_files.REQUEST_ARRAYS, arrays)
        self._write(job_files.REQUEST, {**document, "digest": requests.digest(document)})

    def change_execution(self, execution: Execution) -> None:
        """Keep another place for the same request."""
        assert self.path is not None
        document = job_files.read_json(self.path, job_files.REQUEST)
        self._write(job_files.REQUEST, {**document, "execution": requests.execution_to_document(execution)})

    def progress(self, progress: Progress) -> None:
        """Pass progress on, and write a status now and then; raises Unavailable where that is impossible."""
        now = time.monotonic()
        changed = progress.phase != self._last.phase
        if not progress.total:  # nothing was done yet by this attempt
            progress = replace(self._last, phase=progress.phase)
        self._last = progress
        self._listener(progress)
        if progress.counts:
            self._pace.observe(progress.done, now)
        if changed or now - self._written > STATUS_EVERY:
            self._tell("RUNNING")

    def event(self, event: Event) -> None:
        """Add to the history; raises Unavailable where that is impossible."""
        if self.path is None:
            return
        try:
            EventFile(self.path).append(event)
        except OSError as error:
            raise unwritable(self.path, job_files.EVENTS, error) from None
        self._status = replace(self._status, events=self._status.events + 1)
        self.log("coordinator", " ".join(filter(None, (event.kind, event.member, event.reason))))

    def log(self, name: str, line: str) -> None:
        """Keep one line of the coordinator or a worker."""
        if self._log is not None:
            self._log.line(name, line)

    def cancel_asked(self) -> bool:
        """Whether somebody wants this job to end."""
        return self.path is not None and (self.path / job_files.CANCEL).exists()

    def finish(self, outcome: outcomes.Outcome) -> None:
        """The result is on disk before anybody is told of it; raises Unavailable where it cannot be written."""
        if self.path is None:
            return
        document, arrays = outcomes.to_document(outcome)
        try:
            if arrays:
                self._write_arrays(job_files.OUTCOME_ARRAYS, arrays)
            self._write(job_files.OUTCOME, document)
            self._write(job_files.MANIFEST, outcome.manifest)
            self._write(job_files.RESULT, result.of(outcome))
            self._ended("complete", "COMPLETE")
        except Unavailable as error:
            self.fail(error)
            raise

    def ending(self, error: BaseException) -> None:
        """The job ends without a result, and what it started is being ended; ``fail`` follows."""
        with contextlib.suppress(Unavailable):
            if _is_cancel(error):
                self._tell("CANCELLING", "everything that was started is being ended")

    def fail(self, error: BaseException) -> None:
        """Say how the job ended without a result, if it can be said there; ``error`` is what counts."""
        cancelled = _is_cancel(error)
        ended = "cancelled; everything it started has ended" if self.cancel_asked() else "interrupted"
        named = ended if cancelled else f"{type(error).__name__}: {error}"
        reason = error.message if isinstance(error, PhalanxError) else named
        if isinstance(error, PhalanxError) and error.private:
            self.log("coordinator", error.private)
        self._status = replace(self._status, error="Cancelled" if cancelled else type(error).__name__)
        with contextlib.suppress(Unavailable):
            if cancelled:
                self._ended("cancelled", "CANCELLED", reason)
            else:
                self._ended("failed", "FAILED", reason)

    def close(self) -> None:
        """Let go of the job."""
        if self.lock is not None:
            self.lock.release()

    def waits(self, reason: str, phase: str = "starting") -> None:
        """The job waits for its turn, or for its coordinator, and says why."""
        if (self._status.reason, self._status.phase) != (reason, phase):
            self._last = replace(self._last, phase=phase)
            self._tell("QUEUED", reason)

    def _ended(self, kind: EventKind, state: State, reason: str | None = None) -> None:
        with contextlib.suppress(Unavailable):  # the status is what counts
            self.event(Event(time=time.time(), kind=kind, reason=reason or ""))
        self.ended = True
        self._last = replace(self._last, members=members_ended(self._last.members or self._status.members or self._former))
        self._tell(state, reason)

    def _tell(self, state: State, reason: str | None = None) -> None:
        if self.path is None:
            return
        self._written = time.monotonic()
        live, counted = state in ("RUNNING", "CANCELLING"), self._last.total > 0
        self._status = replace(
            self._status.told(self._last), state=state, reason=reason, pid=os.getpid() if live else None,
            rate=self._pace.rate if counted and live else None,
            eta=self._pace.remaining(self._last.total) if counted and live else None,
            seconds=round(self._earlier + (0.0 if self._began is None else self._written - self._began), 3),
        )  # fmt: skip
        self._write(job_files.STATUS, self._status.to_document())

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        assert self.path is not None
        try:
            write_whole(self.path / name, document)
        except OSError as error:
            raise unwritable(self.path, name, error) from None

    def _write_arrays(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        assert self.path is not None
        try:
            write_arrays(self.path / name, arrays)
        except OSError as error:
            raise unwritable(self.path, name, error) from None


def _is_cancel(error: BaseException) -> bool:
    return isinstance(error, Cancelled) or not isinstance(error, Exception)
