"""The coordinator's core: carries out requests one after another, keeps its engines warm between them, leaves nothing.

It lives on one asyncio loop. ``fit``, ``simulate``, ``evaluate`` and ``predict`` may be cancelled at any await; what they
started has then ended.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator import checks, manifest
from phalanx_coordinator.fit import FitRun, plan_fit
from phalanx_coordinator.members import RemoteMembers
from phalanx_coordinator.output import OutputDirectory
from phalanx_coordinator.placement import Placement, place
from phalanx_coordinator.scoring import predict_rows, score_rows
from phalanx_coordinator.simulate import SimulationRun
from phalanx_coordinator.timing import Deadlines
from phalanx_proto.execution import Cluster, Device, Execution
from phalanx_proto.experiment import Rows
from phalanx_proto.jobs import FitOutcome, FitRequest, FittedParts, Listener, Progress, Score, SimulationOutcome, SimulationRequest
from phalanx_worker.inventory import Inventory, inventory
from phalanx_worker.pool import Pool, SlotSpec

LogSink = Callable[[str, str], None]


def _quiet(worker: str, line: str) -> None:
    """Lines of workers that nobody asked for; the last ones are in the worker's error anyway."""


class Coordinator:
    """One coordinator. Requests queue; close it with ``close``."""

    def __init__(self, deadlines: Deadlines | None = None, log: LogSink = _quiet) -> None:
        self._deadlines = deadlines or Deadlines()
        self._log = log
        self._turn = asyncio.Lock()
        self._pool: Pool | None = None

    async def fit(self, request: FitRequest, listener: Listener, output: Path | None = None) -> FitOutcome:
        """Carry out a fit; raises before anything starts if it cannot be."""
        async with self._turn:
            machine = await asyncio.to_thread(self._inventory, request.execution)
            placement = place(request.execution, machine)
            plan = plan_fit(request, placement)
            described = manifest.of_fit(plan, machine)
            directory = OutputDirectory.create(output, described, listener)
            remote = RemoteMembers(placement, plan.experiment.digest[:16], self._deadlines, self._log)
            run = FitRun(
                plan=plan, pool=self._pool_for(placement.slots), remote=remote, inventory=machine, deadlines=self._deadlines,
                listener=directory.progress, notes=list(placement.notes),
            )  # fmt: skip
            outcome = await self._guarded(run.run, remote, directory)
            outcome = manifest.with_members(outcome, described, remote.handshakes)
            directory.finish(manifest.fit_result(outcome), outcome.manifest)
            return outcome

    async def simulate(
        self, request: SimulationRequest, listener: Listener, output: Path | None = None
    ) -> SimulationOutcome:
        """Carry out a simulation."""
        async with self._turn:
            machine = await asyncio.to_thread(self._inventory, request.execution)
            placement = place(request.execution, machine)
            remote = RemoteMembers(placement, f"simulation-{request.seed}", self._deadlines, self._log)
            checks.check_simulation(request)
            described = manifest.of_simulation(request, placement, machine)
            run = SimulationRun(
                request=request, placement=placement, pool=self._pool_for(placement.slots), remote=remote, inventory=machine,
                deadlines=self._deadlines, listener=listener,
            )  # fmt: skip
            directory = OutputDirectory.create(output, described, listener)
            run.listener = directory.progress
            outcome = await self._guarded(run.run, remote, directory)
            outcome = manifest.with_members(outcome, described, remote.handshakes)
            directory.finish(manifest.simulation_result(outcome), outcome.manifest)
            return outcome

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

    @staticmethod
    def _inventory(execution: Execution) -> Inventory:
        accelerators = isinstance(execution, Cluster) or (isinstance(execution, Device) and execution.backend != "cpu")
        return inventory(accelerators)

    def _pool_for(self, slots: Sequence[SlotSpec]) -> Pool:
        if self._pool is not None and self._pool.slots == tuple(slots):
            return self._pool
        self._stale, self._pool = self._pool, Pool(slots)
        return self._pool

    async def _start_pool(self) -> None:
        stale, self._stale = getattr(self, "_stale", None), None
        if stale is not None:
            await stale.close()
        assert self._pool is not None
        if not self._pool.started:
            await self._pool.start()

    async def _guarded(self, work: Any, remote: RemoteMembers, directory: OutputDirectory) -> Any:
        """Run ``work``; on any failure end the engines too, since their state is unknown. Members always end."""
        try:
            return await work(self._start_pool)
        except BaseException as error:
            directory.fail(error)
            await self._end_pool()
            raise
        finally:
            await asyncio.shield(remote.close())

    async def _canonical(self, work: Callable[[Pool], Any]) -> Any:
        if self._pool is None:
            self._pool = Pool([SlotSpec()])
        try:
            await self._start_pool()
            return await work(self._pool)
        except BaseException:
            await self._end_pool()
            raise

    async def _end_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.shield(pool.close())

    async def close(self) -> None:
        """End every engine."""
        async with self._turn:
            await self._end_pool()


def silent(progress: Progress) -> None:
    """A listener that does not listen."""
