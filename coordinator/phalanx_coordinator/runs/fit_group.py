"""The members of one fit: opened and compared by their canaries, run in lockstep, lost and taken in again, reported."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator.checkpoints.of_a_fit import FitCheckpoints
from phalanx_coordinator.lockstep import node_area
from phalanx_coordinator.lockstep.group_run import GroupRun, Stopped
from phalanx_coordinator.lockstep.instructions import Tell
from phalanx_coordinator.lockstep.machine import Lockstep
from phalanx_coordinator.members.membership import Membership
from phalanx_coordinator.members.remote_members import RemoteMembers
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.members.timing import Deadlines, UpdatePace
from phalanx_coordinator.members.watch import MemberWatch
from phalanx_coordinator.runs.canaries import NumericClass, deviation, judgement, own_deviations
from phalanx_coordinator.runs.fit_binding import FitBinding
from phalanx_coordinator.runs.plan import Plan
from phalanx_coordinator.runs.reports import fit_reports
from phalanx_proto.errors import LedgerMismatch
from phalanx_proto.jobs import EventListener, MemberReport, MemberStatus
from phalanx_worker.inventory import Inventory
from phalanx_worker.pool import Arena, Pool


@dataclass(kw_only=True)
class FitGroup:
    """All members of one fit."""

    plan: Plan
    pool: Pool
    remote: RemoteMembers
    inventory: Inventory
    deadlines: Deadlines
    on_event: EventListener
    compute: dict[str, int] = field(default_factory=dict)
    """Nanoseconds of computing by remote member."""

    def __post_init__(self) -> None:
        self.members = Membership(
            remote=self.remote, placement=self.plan.placement, inventory=self.inventory, on_loss=self.plan.request.on_loss,
            on_event=self.on_event, backoff=self.deadlines.rejoin,
        )  # fmt: skip
        self.watch = MemberWatch(self.plan.placement, self.members.standings)
        self._machine: Lockstep | None = None
        self._first = 0
        local = [record.transport == "local" for record in self.plan.placement.members]
        capacity, node_bytes = self.plan.schedule.capacity, 8 * self.plan.spec.sizes.node_size
        self._usual = node_area.buffers_needed(capacity, local, node_bytes)
        reserve = node_area.buffers_in_reserve(capacity, local) if self.members.rebalances else 0
        self.buffers = max(self._usual, reserve)
        """Buffers for the nodes of remote members."""

    async def open(
        self, gradient: bytes, arrays: Mapping[str, NDArray[Any]], first_buffer: NDArray[np.float64]
    ) -> NumericClass:
        """Bind the fit everywhere and compare the canaries; the canonical engine leaves its node [N] in ``first_buffer``."""
        self._binding = binding = FitBinding(plan=self.plan, arrays=arrays, program=gradient)
        own: list[dict[str, Any]] = []

        async def local() -> None:
            call = {"op": "canaries", "node": bool(self.plan.placement.remote)}
            own.extend((await self.pool.call(call, deadline=self.deadlines.opening)).body["canaries"])

        await self.members.bind(binding.open, local())
        self._canonical = str(own[0]["digest"])
        return await self._numeric_class(own, first_buffer)

    async def _numeric_class(self, own: Sequence[Mapping[str, Any]], node: NDArray[np.float64]) -> NumericClass:
        off = own_deviations(self.plan, own)

        async def compare(worker: RemoteWorker) -> None:
            far = {worker.name: await deviation(self.plan, worker, node)}
            if self.members.rebalances:  # one that is too far off stays out, and does not end the run
                judgement(self.plan, far)
            off.update(far)

        for name, canary in self._binding.canaries.items():
            if canary != self._canonical and name in self.remote.workers:
                await self.members.attempt(name, compare)
        return judgement(self.plan, off)

    async def updates(
        self, work: Arena, on_commit: Callable[[dict[str, Any]], None], update: int, checkpoints: FitCheckpoints | None
    ) -> Stopped | None:
        """Every update from ``update`` on, in lockstep."""
        plan = self.plan
        absent = [record.name for record in plan.placement.remote if record.name not in self.remote.workers]
        self._machine, self._first = plan.machine(absent, update), update
        group = GroupRun(
            machine=self._machine, pool=self.pool, work=work, sizes=plan.spec.sizes, schedule=plan.schedule,
            owners=[None if owner is None else owner.name for owner in plan.placement.owners],
            workers=dict(self.remote.workers), pace=UpdatePace(self.deadlines), usual=self._usual, on_commit=on_commit,
            tell=self._tell, on_lost=self.members.lost, compute=self.compute, checkpoints=checkpoints,
            answered=self.watch.answered,
        )  # fmt: skip
        self.members.begin(self._open_again, group.join)
        try:
            return await group.run()
        finally:
            await self.members.close()

    async def _open_again(self, worker: RemoteWorker) -> None:
        await self._binding.open_again(worker, self._canonical)

    def _tell(self, told: Tell) -> None:
        self.members.tell(told.kind, told.member, told.reason, told.update)

    def owner_of(self, update: int, block: int) -> str:
        """The member whose sums of a block counted in the update under way."""
        found = None if self._machine is None else self._machine.owner_of(block)
        return found or self.plan.owner_of(update, block)

    def reports(self, tallies: Mapping[str, Any]) -> tuple[MemberReport, ...]:
        """What each did so far."""
        return fit_reports(
            self.plan.placement, self.pool, tallies, self.remote, self.members.standings, self._machine, self.compute
        )

    def require_work_of_all(self, reports: Sequence[MemberReport]) -> None:
        """Raises LedgerMismatch for a member that did nothing in a whole fit, unless that may go on without it."""
        idle = [member.name for member in reports if not member.rows]
        if idle and not self.members.rebalances:
            raise LedgerMismatch(f"{', '.join(idle)} contributed no rows to the whole fit; the result is not kept")

    def statuses(self, update: int, tallies: Sequence[Mapping[str, Any]]) -> tuple[MemberStatus, ...]:
        """What each does now that ``update`` updates are committed; the ``tallies`` of the pool where it is alone."""
        if self._machine is None:
            return self.watch.statuses(self.watch.tallied(tallies) if tallies else {})
        rows = {name: found for name, (found, _) in self._machine.accepted.items()}
        local = self.plan.placement.local
        if len(local) == 1:  # what nobody else had; of several here nobody knows before the end
            committed = self.plan.schedule.rows_before(update) - self.plan.schedule.rows_before(self._first)
            rows[local[0].name] = max(committed - sum(rows.values()), 0)
        return self.watch.statuses(rows)

    def notes(self) -> list[str]:
        """What the result must say of members that were not there all the time."""
        return self.members.notes()
