"""A job as its owner holds it: ask how it goes, watch it, wait for its result, cancel it, resume it, read its log.

The same on a job's directory and through a coordinator service. A handle holds nothing: dropping it, or the process that
has it, does not touch the job. Every call blocks; in asyncio use ``await asyncio.to_thread(job.result)``.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from phalanx.results import Fitted, Simulation
from phalanx_proto import job_files
from phalanx_proto.errors import OutOfTime
from phalanx_proto.execution import Execution
from phalanx_proto.job_status import JobStatus
from phalanx_proto.jobs import Event, FitOutcome
from phalanx_proto.outcomes import Outcome

LOOK_EVERY = 0.2
"""Seconds between two looks at a job that somebody waits for."""


class Job(ABC):
    """One job."""

    id: str
    """Its name: that of its directory."""

    @abstractmethod
    def status(self) -> JobStatus:
        """What it is doing now. Raises ``InvalidJob``."""

    @abstractmethod
    def events(self, after: int = 0) -> list[Event]:
        """Its history, from event number ``after`` on."""

    @abstractmethod
    def cancel(self) -> JobStatus:
        """End it; the status when nothing of it is left. What was accepted is kept, but is no result."""

    @abstractmethod
    def resume(self, execution: Execution | None = None) -> "Job":
        """Go on with it from its newest checkpoint, elsewhere if ``execution`` is given; a complete job stays as it is."""

    @abstractmethod
    def logs(self) -> str:
        """What its coordinator and its workers said, the name before each line."""

    @abstractmethod
    def _result(self) -> Fitted | Simulation:
        """The result of a complete job."""

    def watch(self, every: float = LOOK_EVERY) -> Iterator[JobStatus]:
        """Each status that differs from the one before, until the job has ended; looking ``every`` so many seconds."""
        last = None
        while True:
            status = self.status()
            if status != last:
                last = status
                yield status
            if status.ended or status.state == "COORDINATOR_OFFLINE":
                return
            time.sleep(every)

    def result(self, timeout: float | None = None) -> Fitted | Simulation:
        """Wait until it has ended, and give its result.

        Raises the error that ended it, ``PhalanxError`` where its coordinator is gone, and ``OutOfTime`` after ``timeout``
        seconds; the job goes on.
        """
        began = time.monotonic()
        while not ((status := self.status()).ended or status.state == "COORDINATOR_OFFLINE"):
            if timeout is not None and time.monotonic() - began > timeout:
                raise OutOfTime(f"job {self.id} has not ended within {timeout:g} s: it is {status.state}, and goes on")
            time.sleep(LOOK_EVERY if timeout is None else min(LOOK_EVERY, timeout))
        if status.state != "COMPLETE":
            raise job_files.error_of(status)
        return self._result()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


class DirectoryJob(Job):
    """A job by its directory on this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = job_files.require_job(directory)
        self.id = self.directory.name

    def status(self) -> JobStatus:
        """What it is doing now: its last confirmed status, and whether its coordinator is there."""
        return job_files.read_status(self.directory)

    def events(self, after: int = 0) -> list[Event]:
        """Its history, from event number ``after`` on."""
        return job_files.read_events(self.directory, after)

    def cancel(self) -> JobStatus:
        """End it; the status when its coordinator has let go and no process of it is left."""
        from phalanx import embedded

        return embedded.cancel(self.directory)

    def resume(self, execution: Execution | None = None) -> "DirectoryJob":
        """Start a coordinator for it in the background; raises ``JobBusy`` where it has one."""
        from phalanx import embedded

        embedded.resume(self.directory, execution)
        return self

    def logs(self) -> str:
        """What its coordinator and its workers said, the name before each line."""
        try:
            return (self.directory / job_files.LOG).read_text("utf-8", errors="replace")
        except OSError:
            return ""

    def _result(self) -> Fitted | Simulation:
        return result_of(job_files.read_outcome(self.directory))


def result_of(outcome: Outcome) -> Fitted | Simulation:
    """What a person gets of an outcome."""
    return Fitted(outcome) if isinstance(outcome, FitOutcome) else Simulation(outcome)
