"""The jobs of a coordinator service: their directories, their turns, and their runners.

Each job runs in a runner of its own (``background``), so the service can go without ending one, and what ends a job
ends no other. What the service knows it reads from the directories; after a restart it finds all of it there again.
"""

import asyncio
import datetime
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx_coordinator.job_directory.directory import JobDirectory
from phalanx_coordinator.jobs import background
from phalanx_coordinator.jobs import cancel as cancel_job
from phalanx_coordinator.jobs.resuming import take_over
from phalanx_coordinator.jobs.scheduler import Scheduler, Start, Wait
from phalanx_coordinator.session import Coordinator
from phalanx_proto import job_files, job_lock
from phalanx_proto.errors import Cancelled, InvalidRequest, JobBusy, PhalanxError, UnknownJob
from phalanx_proto.execution import Execution
from phalanx_proto.job_status import WAITING, JobStatus
from phalanx_proto.jobs import FitRequest
from phalanx_proto.requests import Request

LOOK_EVERY = 0.1
"""Seconds between two looks at who has ended."""

LONGEST_NAME = 255
"""Bytes of the name of a file."""


def slots_of(manifest: Mapping[str, Any]) -> int:
    """CPU slots of the service's machine that a job uses; at least the one of its canonical engine."""
    members = manifest["execution"]["members"]
    return max(1, sum(int(m["slots"]) for m in members if m["transport"] != "ssh" and m["backend"] == "cpu"))


class JobKeeper:
    """The jobs below one folder."""

    def __init__(self, folder: Path, slots: int, coordinator: Coordinator) -> None:
        self._folder, self._coordinator = folder, coordinator
        self.scheduler = Scheduler(slots)
        self._held: dict[str, JobDirectory] = {}
        """Directories of the jobs that wait."""
        self._news = asyncio.Event()
        self._changing = asyncio.Lock()

    async def recover(self) -> None:
        """Take up what an earlier service left: jobs that run count, jobs that waited wait again."""
        found, _ = await asyncio.to_thread(job_files.listed, self._folder)
        for path, status in sorted(found, key=lambda item: item[0].name):
            if status.ended:
                continue
            try:
                slots = slots_of(job_files.read_json(path, job_files.MANIFEST))
                if job_lock.holder(path) is not None:
                    self.scheduler.adopt(path.name, slots)
                elif job_files.confirmed_status(path).state == "QUEUED":
                    self._enqueue(await asyncio.to_thread(JobDirectory.open, path), slots)
            except (PhalanxError, KeyError, TypeError):
                continue  # its status says what is wrong with it

    async def submit(self, request: Request) -> JobStatus:
        """Check a request, keep it on disk and queue it; raises what it is refused for."""
        described = await self._coordinator.described(request)
        slots = slots_of(described)
        async with self._changing:
            self.scheduler.check(slots)
            path = self._folder / _name("fit" if isinstance(request, FitRequest) else "simulation")
            directory = await asyncio.to_thread(JobDirectory.create, path, request, described)
            self._enqueue(directory, slots)
        return self.status(path.name)

    async def resume(self, job: str, execution: Execution | None) -> JobStatus:
        """Queue a job again; one that is complete stays as it is."""
        path = self.path(job)
        if self.status(job).state == "COMPLETE":
            return self.status(job)
        async with self._changing:
            if self.scheduler.is_waiting(job):
                raise JobBusy(f"job {job} waits for its turn already; cancel it first to change where it runs")
            directory = await take_over(self._coordinator, path, execution)
            try:
                request = await asyncio.to_thread(directory.request)
                slots = slots_of(await self._coordinator.described(request))
                self.scheduler.check(slots)
            except BaseException:
                directory.close()
                raise
            self._enqueue(directory, slots)
        return self.status(job)

    async def cancel(self, job: str) -> JobStatus:
        """End a job; the status when nothing of it is left."""
        path = self.path(job)
        async with self._changing:
            if self.scheduler.is_waiting(job):
                self._drop(job)
                return self.status(job)
        status = await asyncio.to_thread(cancel_job.cancel, path)
        self._news.set()
        return status

    def _drop(self, job: str) -> None:
        """A job leaves the queue without having begun."""
        directory = self._held.pop(job)
        self.scheduler.ended(job)
        directory.fail(Cancelled("cancelled before its turn came"))
        directory.close()

    def jobs(self) -> list[JobStatus]:
        """Every job, in the order of submission."""
        found, _ = job_files.listed(self._folder)
        return [status for _, status in found]

    def status(self, job: str) -> JobStatus:
        """One job now; raises ``UnknownJob``, ``InvalidJob``."""
        return job_files.read_status(self.path(job))

    def path(self, job: str) -> Path:
        """The directory of a job; raises ``UnknownJob``."""
        if not _is_name(job) or not (self._folder / job / job_files.MANIFEST).is_file():
            raise UnknownJob(f"this service has no job {job!r:.80}; its jobs are listed by jobs()")
        return self._folder / job

    async def run(self) -> None:
        """Start jobs as their turns come, until cancelled."""
        while True:
            await self._turns()
            self._news.clear()
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _turns(self) -> None:
        async with self._changing:
            for job in self.scheduler.running:
                if job_lock.holder(self._folder / job) is None:
                    self.scheduler.ended(job)
            for job in [name for name, directory in self._held.items() if directory.cancel_asked()]:
                self._drop(job)
            for decision in self.scheduler.decide():
                if isinstance(decision, Start):
                    await self._start(decision.job)
                else:
                    self._tell_to_wait(decision)

    def _tell_to_wait(self, decision: Wait) -> None:
        """A job whose directory cannot be written, or is gone, leaves the queue; the others wait on."""
        try:
            self._held[decision.job].waits(decision.reason, WAITING)
        except PhalanxError as error:
            print(f"job {decision.job} leaves the queue: {error.message}", file=sys.stderr, flush=True)
            self._drop(decision.job)

    async def _start(self, job: str) -> None:
        directory = self._held.pop(job)
        try:
            directory.waits("its coordinator is being started")
            await asyncio.to_thread(background.launch, directory)
        except PhalanxError as error:
            self.scheduler.ended(job)
            if not directory.ended:
                directory.fail(error)
            directory.close()

    def _enqueue(self, directory: JobDirectory, slots: int) -> None:
        assert directory.path is not None
        job = directory.path.name
        try:
            self.scheduler.submit(job, slots)
            directory.waits("waits for its turn", WAITING)
        except PhalanxError as error:
            self.scheduler.ended(job)
            directory.fail(error)
            directory.close()
            raise
        self._held[job] = directory
        self._news.set()

    def close(self) -> None:
        """Let go of the jobs that wait; the next service takes them up."""
        for directory in self._held.values():
            directory.close()
        self._held.clear()


def _name(kind: str) -> str:
    """A name for a new job: what it is and when it came, so that names sort by age."""
    return f"{kind}-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S%f}"[:-3] + f"-{secrets.token_hex(2)}"


def _is_name(job: str) -> bool:
    """Whether a directory may be called so."""
    return bool(job) and not job.startswith(".") and not {"/", "\0"} & set(job) and len(job.encode()) <= LONGEST_NAME


def require_fit(request: Request) -> FitRequest:
    """Raises ``InvalidRequest`` unless it is a fit."""
    if not isinstance(request, FitRequest):
        raise InvalidRequest("SubmitFit takes a fit; SubmitSimulation takes a simulation")
    return request
