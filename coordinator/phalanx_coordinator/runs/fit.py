"""One fit from its request to its outcome: check, place, start, admit, open, update, validate, report.

The story: everything that can be refused is refused first; engines and workers start side by side while the data is
prepared; every member shows its canary; then updates run, in stretches inside the pool where it is alone, in lockstep over
gRPC where it is not. Both end in the same bits, and so does a run that goes on from another's checkpoint.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from phalanx_coordinator.checkpoints.checkpoint import Checkpoint, Origin
from phalanx_coordinator.checkpoints.of_a_fit import Arrays, Earlier, FitCheckpoints, restore
from phalanx_coordinator.checkpoints.writer import CheckpointWriter
from phalanx_coordinator.lockstep.group_run import Stopped
from phalanx_coordinator.members.remote_members import RemoteMembers
from phalanx_coordinator.members.timing import Deadlines, UpdatePace
from phalanx_coordinator.runs import data
from phalanx_coordinator.runs.fit_group import FitGroup
from phalanx_coordinator.runs.history import History
from phalanx_coordinator.runs.plan import Plan
from phalanx_coordinator.runs.reports import non_finite
from phalanx_coordinator.runs.resumption import NOTHING, Resumption
from phalanx_coordinator.runs.scoring import Lowered, lower, parameters_of, score_rows
from phalanx_coordinator.waiting import side_by_side
from phalanx_proto import tensors
from phalanx_proto.errors import NonFinite
from phalanx_proto.jobs import (
    Event,
    EventListener,
    FitOutcome,
    FitSeconds,
    FittedParts,
    Level,
    Listener,
    Progress,
    Scaling,
    Score,
    unheard,
)
from phalanx_worker.inventory import Inventory
from phalanx_worker.pool import Arena, FitOpening, Pool, data_arena

STRETCH = 0.25
"""Seconds of updates between two looks at the outside world, where the pool is alone."""
TELL_EVERY = 0.05
"""Seconds between two reports of progress."""


@dataclass(kw_only=True)
class FitRun:
    """The state of one fit under way."""

    plan: Plan
    pool: Pool
    remote: RemoteMembers
    inventory: Inventory
    deadlines: Deadlines
    listener: Listener
    on_event: EventListener = unheard
    writer: CheckpointWriter | None = None
    """None keeps nothing."""
    resume: Resumption = NOTHING
    level: Level = "bitwise"
    told: float = 0.0
    """When progress was last reported."""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.group = FitGroup(
            plan=self.plan, pool=self.pool, remote=self.remote, inventory=self.inventory, deadlines=self.deadlines,
            on_event=self.on_event,
        )  # fmt: skip
        self._history = History(self.plan.spec)
        self._checkpoints: FitCheckpoints | None = None
        self._tallies: list[dict[str, Any]] = []
        self._earlier = Earlier.of(self.resume.checkpoint)

    async def run(self, start_pool: Callable[[], Awaitable[None]]) -> FitOutcome:
        """Carry the fit out; if it fails, the caller ends pool and members."""
        self._began = time.monotonic()
        self.listener(Progress(phase="starting"))
        arrays, lowered = await self._start(start_pool)
        self.notes += await self.group.members.admit()
        self.listener(Progress(phase="opening"))
        data_of_pool = data_arena(arrays)
        try:
            work = await self._open(lowered, data_of_pool, arrays)
        finally:
            data_of_pool.close()
        self._ready = time.monotonic()
        try:
            await self._updates(work)
        finally:
            await self._close_checkpoints()
        updated = time.monotonic()
        tallies = (await self.pool.call({"op": "tallies"}, deadline=self.deadlines.opening)).body
        parameters = await parameters_of(self.pool, self.plan.spec)
        await self.pool.close_fit()
        fitted = self._fitted(lowered, parameters)
        train = await score_rows(self.pool, fitted, self.plan.request.train)
        held_out = self.plan.request.test
        test = None if held_out is None else await score_rows(self.pool, fitted, held_out)
        return replace(self._outcome(fitted, train, tallies, self._seconds(tallies, updated)), test=test)

    async def _start(self, start_pool: Callable[[], Awaitable[None]]) -> tuple[dict[str, NDArray[Any]], Lowered]:
        """Engines, what they lower, daemons and data side by side; if one fails, the others have ended or are there to be."""
        arrays: dict[str, NDArray[Any]] = {}
        lowered: list[Lowered] = []

        async def prepare() -> None:
            arrays.update(await asyncio.to_thread(self._prepare))

        async def start_engines() -> None:
            await start_pool()
            lowered.append(await lower(self.pool, self.plan.spec))

        await side_by_side([prepare(), self.group.members.start(self.plan.run, start_engines())])
        return arrays, lowered[0]

    def _prepare(self) -> dict[str, NDArray[Any]]:
        request, dtype = self.plan.request, self.plan.placement.dtype
        self.scaling: Scaling | None = data.fit_scaling(request.train.x) if request.standardize else None
        return data.fit_arrays(request, self.scaling, dtype)

    def _seconds(self, tallies: Mapping[str, Any], updated: float) -> FitSeconds:
        """Of this part of the fit, whose last update so far ended at ``updated`` on the monotonic clock."""
        validation = tallies["validation"] / 1e9
        return FitSeconds(
            setup=self._ready - self._began, updates=updated - self._ready - validation,
            validation=None if self.plan.request.validation is None else validation, total=time.monotonic() - self._began,
        )  # fmt: skip

    def _opening(self, lowered: Lowered) -> FitOpening:
        request, placement, schedule = self.plan.request, self.plan.placement, self.plan.schedule
        return FitOpening(
            sizes=self.plan.spec.sizes, schedule=schedule, artifacts=lowered.artifacts, slots=len(placement.owners),
            weights=placement.weights, held=schedule.updates_per_epoch, remote=self.group.buffers, state=lowered.state,
            keep_best=request.keep_best, validation_rows=0 if request.validation is None else len(request.validation),
        )  # fmt: skip

    async def _open(self, lowered: Lowered, arena: Arena, arrays: Mapping[str, NDArray[Any]]) -> Arena:
        """Bind the run everywhere and compare the canaries."""
        opening = self._opening(lowered)
        work = await self.pool.open(opening, [arena])
        found = await self.group.open(lowered.artifacts["gradient"], arrays, work["remote"][0])
        self.level = found.level
        self.notes += found.notes
        await self._go_on(opening)
        return work

    async def _go_on(self, opening: FitOpening) -> None:
        """From the checkpoint, where there is one; and get ready to write others."""
        layout, checkpoint = opening.saved(), self.resume.checkpoint
        self.notes += self.resume.notes
        if checkpoint is not None:
            await restore(self.pool, checkpoint, layout, self.deadlines.opening)
            self._history.restore(checkpoint.arrays["history"])
            self.level = self.level if self.resume.level == "bitwise" else "tolerance"
            self.on_event(Event(time=time.time(), kind="resumed", update=checkpoint.update))
        if self.writer is not None:
            self._checkpoints = FitCheckpoints(
                writer=self.writer, pool=self.pool, layout=layout, make=self._checkpoint, deadline=self.deadlines.opening
            )
            self.writer.begin(self.resume.update)

    def _checkpoint(self, answer: Mapping[str, Any], arrays: Arrays) -> Checkpoint:
        so_far = self._earlier.and_then(self.group.reports(answer), self._seconds(answer, time.monotonic()))
        return Checkpoint(
            kind="fit", experiment=self.plan.experiment.digest, dtype=self.plan.spec.dtype, update=int(answer["update"]),
            level=self.level, origin=Origin.here(self.inventory), state=so_far.state(answer["best"]),
            arrays={**arrays, "history": self._history.sums()},
        )  # fmt: skip

    async def _close_checkpoints(self) -> None:
        if self._checkpoints is not None:
            error = await self._checkpoints.close()
            self.notes += [] if error is None else [error.message]

    async def _updates(self, work: Arena) -> None:
        """All updates; raises NonFinite if one cannot be committed."""
        if not self.plan.placement.remote:
            await self._stretches()
            return
        stopped = await self.group.updates(work, self._committed, self.resume.update, self._checkpoints)
        if isinstance(stopped, Stopped):
            raise await self._not_finite(stopped.update)

    async def _stretches(self) -> None:
        total, update = self.plan.schedule.updates, self.resume.update
        pace = UpdatePace(self.deadlines)
        while update < total:
            started = time.monotonic()
            until = total if self.writer is None else self.writer.stop(update)
            call = {"op": "stretch", "until": until, "seconds": STRETCH}
            answer = (await self.pool.call(call, deadline=STRETCH + pace.deadline)).body
            pace.took(time.monotonic() - started)
            update = answer["update"]
            self._tallies = (await self.pool.call({"op": "tallies"}, deadline=pace.deadline)).body["tallies"]
            self._committed(answer)
            if answer["stopped"] is not None:
                raise await self._not_finite(update)
            if self._checkpoints is not None:
                await self._checkpoints.at(update)

    def _committed(self, answer: Mapping[str, Any]) -> None:
        self._history.add(answer["epochs"])
        now = time.monotonic()
        if answer["update"] < self.plan.schedule.updates and now - self.told < TELL_EVERY:
            return
        self.told = now
        last = self._history.records[-1] if self._history.records else None
        self.listener(
            Progress(
                phase="updates", done=answer["update"], total=self.plan.schedule.updates,
                loss=last.train.loss if last else None, epoch=last.epoch if last else None,
                validation_loss=last.validation.loss if last and last.validation else None,
                members=self.group.statuses(answer["update"], self._tallies),
            )
        )  # fmt: skip

    async def _not_finite(self, update: int) -> NonFinite:
        """The error that names update, block, rows and member; parameters stay at the last committed update."""
        found = (await self.pool.call({"op": "diagnose"}, deadline=self.deadlines.opening)).body
        member = "" if found["block"] is None else self.group.owner_of(update, int(found["block"]))
        return non_finite(update, found, member)

    def _fitted(self, lowered: Lowered, parameters: NDArray[Any]) -> FittedParts:
        programs = {name: lowered.artifacts[name] for name in ("score", "predict")}
        return FittedParts(
            spec=self.plan.spec, programs=programs, parameters=parameters, scaling=self.scaling,
            source=self.plan.request.train.source,
        )  # fmt: skip

    def _outcome(self, fitted: FittedParts, train: Score, tallies: Mapping[str, Any], seconds: FitSeconds) -> FitOutcome:
        best = tallies["best"]
        kept = None if best is None else int(best["epoch"])
        history = self._history.records
        chosen = history[-1 if kept is None else kept]
        members = self.group.reports(tallies)
        if self.resume.checkpoint is None:
            self.group.require_work_of_all(members)
        whole = self._earlier.and_then(members, seconds)
        self.notes += self.group.notes()
        return FitOutcome(
            fitted=fitted, digest=tensors.digest(fitted.parameters), level=self.level, updates=self.plan.schedule.updates,
            history=tuple(history), train=train, validation=chosen.validation, best_epoch=kept, members=whole.members,
            seconds=whole.seconds, notes=tuple(self.notes), manifest={},
        )  # fmt: skip
