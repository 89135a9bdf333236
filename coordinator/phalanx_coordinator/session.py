"""The coordinator's core: carries out requests one after another, keeps engines and daemons warm between them.

It lives on one asyncio loop. ``fit``, ``simulate``, ``evaluate`` and ``predict`` may be cancelled at any await; what they
started has then ended. ``close`` leaves nothing.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator.cancellation import unless_asked
from phalanx_coordinator.checkpoints.checkpoint import Checkpoint
from phalanx_coordinator.checkpoints.policy import CheckpointPolicy
from phalanx_coordinator.checkpoints.store import CheckpointStore
from phalanx_coordinator.checkpoints.writer import CheckpointWriter
from phalanx_coordinator.engines_here import require_engines
from phalanx_coordinator.job_directory.directory import JobDirectory
from phalanx_coordinator.members.placement import Placement, place
from phalanx_coordinator.members.remote_members import RemoteMembers
from phalanx_coordinator.members.timing import Deadlines
from phalanx_coordinator.runs import checks, manifest, position
from phalanx_coordinator.runs.fit import FitRun
from phalanx_coordinator.runs.plan import plan_fit
from phalanx_coordinator.runs.resumption import NOTHING, Resumption, Wanted, resume_from
from phalanx_coordinator.runs.scoring import predict_rows, score_rows
from phalanx_coordinator.runs.simulation import SimulationRun, plan_simulation
from phalanx_proto.errors import NonFinite, PhalanxError
from phalanx_proto.execution import Cluster, Device, Execution
from phalanx_proto.experiment import Rows
from phalanx_proto.jobs import (
    Event,
    FitOutcome,
    FitRequest,
    FittedParts,
    Listener,
    Progress,
    Score,
    SimulationOutcome,
    SimulationRequest,
)
from phalanx_worker.inventory import Inventory as Inventory
from phalanx_worker.inventory import inventory
from phalanx_worker.pool import Pool, SlotSpec

Result = TypeVar("Result")
LogSink = Callable[[str, str], None]
Output = Path | JobDirectory | None


def unheard_line(worker: str, line: str) -> None:
    """Lines of workers that nobody asked for; the last ones are in the worker's error anyway."""


class Coordinator:
    """One coordinator. Requests queue; close it with ``close``."""

    def __init__(self, deadlines: Deadlines | None = None, log: LogSink = unheard_line) -> None:
        self._deadlines = deadlines or Deadlines()
        self._log = log
        self._directory: JobDirectory | None = None
        self._turn = asyncio.Lock()
        self._pool: Pool | None = None
        self._retired: list[Pool] = []
        self._remote = RemoteMembers(self._deadlines, self._say)

    async def fit(
        self, request: FitRequest, listener: Listener, output: Output = None, *, resume: Checkpoint | None = None
    ) -> FitOutcome:
        """Carry out a fit; raises before anything starts if it cannot be.

        ``output`` names a new directory, or is one that was opened for this request; without it nothing is written. The fit
        goes on from the checkpoint ``resume``, else from the newest one in a directory that was opened.
        """
        async with self._turn:
            machine, placement = await self._place(request)
            plan = await asyncio.to_thread(plan_fit, request, placement)
            going_on = await self._going_on(output, resume, Wanted.by_fit(plan, machine))
            described, at = manifest.of_fit(plan, machine), position.of_fit(plan, going_on)
            with self._writing(output, request, described, listener, at) as directory:
                run = FitRun(
                    plan=plan, pool=self._pool_for(placement.slots), remote=self._remote, inventory=machine,
                    deadlines=self._deadlines, listener=directory.progress, on_event=directory.event,
                    notes=list(placement.notes), resume=going_on,
                    writer=self._writer(directory, CheckpointPolicy.of_fit(plan.schedule, request.checkpoint_every), going_on),
                )  # fmt: skip
                outcome = await self._guarded(run.run, directory)
                outcome = manifest.with_members(outcome, described, self._remote.handshakes)
                directory.finish(outcome)
                return outcome

    async def simulate(
        self, request: SimulationRequest, listener: Listener, output: Output = None, *, resume: Checkpoint | None = None
    ) -> SimulationOutcome:
        """Carry out a simulation; ``output`` and ``resume`` are as in ``fit``."""
        async with self._turn:
            machine, placement = await self._place(request)
            going_on = await self._going_on(output, resume, Wanted.by_simulation(request, machine))
            ledger = plan_simulation(request, placement, going_on.checkpoint)
            described, at = manifest.of_simulation(request, placement, machine), position.of_simulation(request, going_on)
            with self._writing(output, request, described, listener, at) as directory:
                run = SimulationRun(
                    request=request, placement=placement, ledger=ledger, pool=self._pool_for(placement.slots),
                    remote=self._remote, inventory=machine, deadlines=self._deadlines, listener=directory.progress,
                    on_event=directory.event, resume=going_on,
                    writer=self._writer(directory, CheckpointPolicy.of_simulation(request), going_on),
                )  # fmt: skip
                outcome = await self._guarded(run.run, directory)
                outcome = manifest.with_members(outcome, described, self._remote.handshakes)
                directory.finish(outcome)
                return outcome

    async def described(self, request: FitRequest | SimulationRequest, output: Output = None) -> dict[str, Any]:
        """Check a request as if it were to start now, and give its manifest; raises what ``fit`` and ``simulate`` would."""
        machine, placement = await self._place(request)
        if isinstance(request, SimulationRequest):
            going_on = await self._going_on(output, None, Wanted.by_simulation(request, machine))
            plan_simulation(request, placement, going_on.checkpoint)
            return manifest.of_simulation(request, placement, machine)
        plan = await asyncio.to_thread(plan_fit, request, placement)
        await self._going_on(output, None, Wanted.by_fit(plan, machine))
        return manifest.of_fit(plan, machine)

    @staticmethod
    async def _going_on(output: Output, given: Checkpoint | None, wanted: Wanted) -> Resumption:
        """From where: the checkpoint given, or the newest of a directory that was opened."""
        notes: tuple[str, ...] = ()
        if given is None and isinstance(output, JobDirectory) and output.checkpoints is not None:
            store = CheckpointStore(output.checkpoints)
            given = await asyncio.to_thread(store.newest)
            notes = store.notes
        if given is not None:
            return resume_from(given, wanted)
        return replace(NOTHING, notes=notes)

    @staticmethod
    def _writer(directory: JobDirectory, policy: CheckpointPolicy, going_on: Resumption) -> CheckpointWriter | None:
        """Of a job with a directory; others keep nothing."""
        if directory.checkpoints is None:
            return None
        before = going_on.checkpoint
        store = CheckpointStore(directory.checkpoints, None if before is None else before.update)

        def tell(update: int) -> None:
            directory.event(Event(time=time.time(), kind="checkpoint", update=update))

        return CheckpointWriter(store, policy, tell)

    async def _place(self, request: FitRequest | SimulationRequest) -> tuple[Inventory, Placement]:
        require_engines()
        machine = await asyncio.to_thread(self._inventory, request.execution)
        return machine, place(request.execution, machine)

    @contextlib.contextmanager
    def _writing(
        self, output: Output, request: FitRequest | SimulationRequest, described: Mapping[str, Any], listener: Listener,
        at: Progress,
    ) -> Iterator[JobDirectory]:  # fmt: skip
        """The job's directory while it runs; what workers say meanwhile is kept there."""
        directory = output if isinstance(output, JobDirectory) else JobDirectory.create(output, request, described)
        try:
            directory.begin(described, listener, at)
            self._directory = directory
            yield directory
        finally:
            self._directory = None
            directory.close()

    def _say(self, worker: str, line: str) -> None:
        self._log(worker, line)
        if self._directory is not None:
            self._directory.log(worker, line)

    async def evaluate(self, fitted: FittedParts, rows: Rows) -> Score:
        """Loss and accuracy over rows of any role."""
        checks.check_evaluation(fitted, rows)
        async with self._turn:
            return await self._canonical(lambda pool: score_rows(pool, fitted, rows))

    async def predict(self, fitted: FittedParts, x: NDArray[np.float64]) -> NDArray[Any]:
        """Outputs [rows, O] in the group dtype."""
        checks.check_features(fitted, x)
        async with self._turn:
            return await self._canonical(lambda pool: predict_rows(pool, fitted, x))

    async def inventory(self) -> Inventory:
        """What this machine has."""
        return await asyncio.to_thread(inventory, True)

    async def in_turn(self, work: Callable[[Inventory], Awaitable[Result]]) -> Result:
        """Carry out work about machines between the requests: ``close`` waits until what it started has ended."""
        async with self._turn:
            return await work(await self.inventory())

    @staticmethod
    def _inventory(execution: Execution) -> Inventory:
        accelerators = isinstance(execution, Cluster) or (isinstance(execution, Device) and execution.backend != "cpu")
        return inventory(accelerators)

    def _pool_for(self, slots: Sequence[SlotSpec]) -> Pool:
        if self._pool is None or self._pool.slots != tuple(slots):
            self._retired += [] if self._pool is None else [self._pool]
            self._pool = Pool(slots)
        return self._pool

    async def _start_pool(self) -> None:
        await self._end_retired()
        assert self._pool is not None
        if not self._pool.started:
            await self._pool.start()

    async def _guarded(
        self, work: Callable[[Callable[[], Awaitable[None]]], Awaitable[Result]], directory: JobDirectory
    ) -> Result:
        """Run ``work``; engines and daemons stay warm, but for a failure that leaves their state unknown: then all end."""
        try:
            started = work(self._start_pool)
            outcome = await (started if directory.path is None else unless_asked(started, directory.cancel_asked))
            await self._release()
        except BaseException as error:
            directory.ending(error)
            try:
                await asyncio.shield(self._keep_or_end(error))
            finally:
                directory.fail(error)
            raise
        return outcome

    async def _keep_or_end(self, error: BaseException) -> None:
        """After an update that could not be committed everybody is well; after anything else all end."""
        if isinstance(error, NonFinite) and self._pool is not None:
            try:
                await self._pool.close_fit()
                await self._release()
                return
            except PhalanxError as fault:
                self._say("coordinator", f"the engines are not kept for the next run: {fault.message}")
        await self._end_all()

    async def _release(self) -> None:
        """Free the daemons for the next run. The result is there: one that cannot let go ends, and fails nobody."""
        try:
            await self._remote.release()
        except PhalanxError as error:
            self._say("coordinator", f"the group is not kept for the next run: {error.message}")
            await self._remote.close()

    async def _canonical(self, work: Callable[[Pool], Awaitable[Result]]) -> Result:
        require_engines()
        if self._pool is None:
            self._pool = Pool([SlotSpec()])
        try:
            await self._start_pool()
            return await work(self._pool)
        except BaseException:
            await asyncio.shield(self._end_pool())
            raise

    async def _end_all(self) -> None:
        await asyncio.gather(self._end_pool(), self._remote.close())

    async def _end_pool(self) -> None:
        pool, self._pool = self._pool, None
        self._retired += [] if pool is None else [pool]
        await self._end_retired()

    async def _end_retired(self) -> None:
        while self._retired:
            await self._retired[-1].close()
            self._retired.pop()

    async def close(self) -> None:
        """End every engine and every daemon."""
        async with self._turn:
            await self._end_all()
