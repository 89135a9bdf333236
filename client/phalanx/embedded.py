"""The coordinator's core in this process: the only module of the client that imports it, and only when it is needed.

It runs on a thread with an asyncio loop of its own, so it works in scripts and in notebooks. Its engines are processes
that end with this one.
"""

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator.cluster.private_files import create_private as create_private
from phalanx_coordinator.cluster.reading import ClusterFile as ClusterFile
from phalanx_coordinator.cluster.reading import read_cluster as read_cluster
from phalanx_coordinator.cluster.writing import group_text as group_text
from phalanx_coordinator.doctor import table as doctor_table
from phalanx_coordinator.doctor.examine import examine
from phalanx_coordinator.engines_here import require_engines
from phalanx_coordinator.enroll.enroll import Enrolled as Enrolled
from phalanx_coordinator.enroll.enroll import Removed as Removed
from phalanx_coordinator.enroll.enroll import enroll
from phalanx_coordinator.enroll.enroll import remove as remove_enrolled
from phalanx_coordinator.enroll.plan import Enrolment as Enrolment
from phalanx_coordinator.jobs import background, resuming
from phalanx_coordinator.jobs.cancel import cancel as cancel
from phalanx_coordinator.members.findings import Examination
from phalanx_coordinator.members.timing import Deadlines
from phalanx_coordinator.session import Coordinator, LogSink, unheard_line
from phalanx_coordinator.session import Inventory as Inventory
from phalanx_proto.errors import Cancelled, InvalidRequest
from phalanx_proto.execution import Execution
from phalanx_proto.experiment import Rows
from phalanx_proto.job_status import JobStatus
from phalanx_proto.jobs import FittedParts, Listener, Score
from phalanx_proto.outcomes import Outcome
from phalanx_proto.requests import Request

Result = TypeVar("Result")
Work = Callable[[Coordinator], Coroutine[Any, Any, Result]]

CLOSING = 30.0
"""Seconds for the engines to end at exit."""

examination_document = doctor_table.document
examination_summary = doctor_table.summary


class Embedded:
    """A coordinator on a thread of its own; started by the first call, closed at exit or by ``close``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._coordinator: Coordinator | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        """The work under way; a cancelled one may take a while to end."""
        self._inherited: list[object] = []
        """What a fork copied of the parent's: dropping a copied gRPC channel would wait for ever for a thread left behind."""
        self.log: LogSink | None = None

    def run(self, work: Work[Result]) -> Result:
        """Carry out ``work`` on the coordinator and wait. An interrupt cancels it and waits until it has ended.

        Raises ``InvalidRequest`` when called by a listener, which would wait for itself.
        """
        loop, coordinator = self._ensure()
        self._refuse_listener("start other work")
        future = asyncio.run_coroutine_threadsafe(self._noted(work, coordinator), loop)
        try:
            return self._wait(future)
        except KeyboardInterrupt:
            future.cancel()
            self._settle(loop, coordinator, everything=False)
            raise
        except CancelledError:
            raise Cancelled("the work was cancelled; everything it started has ended") from None

    async def _noted(self, work: Work[Result], coordinator: Coordinator) -> Result:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work(coordinator)
        finally:
            self._tasks.discard(task)

    def _settle(self, loop: asyncio.AbstractEventLoop, coordinator: Coordinator, *, everything: bool) -> None:
        """Wait until what was cancelled has ended, whether it held the coordinator or not, and end the engines.

        ``everything`` cancels what is under way first: on the loop, where all that was handed over before has begun.
        """

        async def settle() -> None:
            if everything:
                for task in self._tasks:
                    task.cancel()
            ending = [task for task in self._tasks if task.cancelling()]
            if ending:
                await asyncio.wait(ending)
            await coordinator.close()

        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(settle(), loop).result(CLOSING)

    def evaluate(self, fitted: FittedParts, rows: Rows) -> Score:
        """Loss and accuracy over rows, on the canonical engine."""
        return self.run(lambda coordinator: coordinator.evaluate(fitted, rows))

    def predict(self, fitted: FittedParts, x: NDArray[np.float64]) -> NDArray[Any]:
        """Outputs [rows, O], on the canonical engine."""
        return self.run(lambda coordinator: coordinator.predict(fitted, x))

    def _refuse_listener(self, what: str) -> None:
        if threading.current_thread() is self._thread:
            raise InvalidRequest(f"a progress listener cannot {what}: note what it needs and do that later")

    @staticmethod
    def _wait(future: "Future[Result]") -> Result:
        while not future.done():
            wait([future], timeout=0.2)  # a plain wait could not be interrupted on every system
        return future.result()

    def _ensure(self) -> tuple[asyncio.AbstractEventLoop, Coordinator]:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._start()
            assert self._loop is not None and self._coordinator is not None
            return self._loop, self._coordinator

    def _start(self) -> None:
        if self._loop is not None:
            self._inherited += [self._loop, self._coordinator]
        self._pid = os.getpid()
        self._tasks = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="phalanx-coordinator", daemon=True)
        self._thread.start()
        log = self.log
        self._coordinator = Coordinator(log=log) if log is not None else Coordinator()

    def close(self) -> None:
        """End the engines and the thread, and cancel what other threads wait for. The next call starts anew.

        Raises ``InvalidRequest`` when called by a listener.
        """
        self._refuse_listener("shut down what tells it of progress")
        if self._pid != os.getpid():  # nothing was started here, and what a fork copied is the parent's to end
            return
        with self._lock:
            loop, coordinator, thread = self._loop, self._coordinator, self._thread
            self._loop = self._coordinator = self._thread = None
        if loop is None or coordinator is None:
            return
        self._settle(loop, coordinator, everything=True)
        loop.call_soon_threadsafe(loop.stop)
        if thread is not None:
            thread.join(CLOSING)
        loop.close()


def examine_group(file: Path, *, clean: bool, tell: Callable[[str], None]) -> Examination:
    """Examine every machine of a cluster file; raises ``InvalidCluster`` for the file, ``Unavailable`` without JAX here."""
    group, log = read_cluster(file), EMBEDDED.log or unheard_line
    require_engines()

    async def work(here: Inventory) -> Examination:
        return await examine(group, here, clean=clean, deadlines=Deadlines(), log=log, tell=tell)

    return EMBEDDED.run(lambda coordinator: coordinator.in_turn(work))


def enroll_machine(asked: Enrolment, tell: Callable[[str], None]) -> Enrolled:
    """Enrol one machine; raises with the next step where that cannot be."""
    log = EMBEDDED.log or unheard_line

    async def work(here: Inventory) -> Enrolled:
        return await enroll(asked, here, deadlines=Deadlines(), log=log, tell=tell)

    return EMBEDDED.run(lambda coordinator: coordinator.in_turn(work))


def remove_machine(name: str, file: Path, tell: Callable[[str], None], *, dry_run: bool) -> Removed:
    """Remove what enroll made of one machine, and its record; a dry run only looks."""
    return EMBEDDED.run(
        lambda coordinator: coordinator.in_turn(lambda here: remove_enrolled(name, file, tell, dry_run=dry_run))
    )


EMBEDDED = Embedded()
atexit.register(EMBEDDED.close)


def submit(request: Request, directory: Path) -> JobStatus:
    """Start a job in the background; the status once it has begun."""
    return EMBEDDED.run(lambda coordinator: background.submit(coordinator, request, directory))


def resume(directory: Path, execution: Execution | None) -> JobStatus:
    """Go on with a job in the background; the status once it has begun."""
    return EMBEDDED.run(lambda coordinator: background.resume(coordinator, directory, execution))


def carry_on(directory: Path, execution: Execution | None, listener: Listener) -> Outcome:
    """Go on with a job here, and wait for its outcome."""
    return EMBEDDED.run(lambda coordinator: resuming.carry_on(coordinator, directory, execution, listener))
