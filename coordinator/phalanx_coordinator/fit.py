"""One fit from its request to its outcome: check, place, start, admit, open, update, validate, report.

The story: everything that can be refused is refused first; engines and workers start side by side while the data is
prepared; every member shows its canary; then updates run, in stretches inside the pool where it is alone, in lockstep over
gRPC where it is not. Both end in the same bits.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator import data
from phalanx_coordinator.fit_group import FitGroup
from phalanx_coordinator.group import Stopped
from phalanx_coordinator.members import RemoteMembers
from phalanx_coordinator.plan import SCORE_BLOCK, Plan
from phalanx_coordinator.scoring import Lowered, lower, score_of, score_rows
from phalanx_coordinator.timing import Deadlines, UpdatePace
from phalanx_coordinator.waiting import side_by_side
from phalanx_proto import tensors
from phalanx_proto.errors import NonFinite
from phalanx_proto.jobs import (
    EpochRecord,
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
    history: list[EpochRecord] = field(default_factory=list)
    level: Level = "bitwise"
    told: float = 0.0
    """When progress was last reported."""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.group = FitGroup(
            plan=self.plan, pool=self.pool, remote=self.remote, inventory=self.inventory, deadlines=self.deadlines,
            on_event=self.on_event,
        )  # fmt: skip

    async def run(self, start_pool: Callable[[], Awaitable[None]]) -> FitOutcome:
        """Carry the fit out; if it fails, the caller ends pool and members."""
        clock = time.monotonic
        began = clock()
        self.listener(Progress(phase="starting"))
        arrays = await self._start(start_pool)
        self.notes += await self.group.members.admit()
        lowered = await lower(self.pool, self.plan.spec)
        self.listener(Progress(phase="opening"))
        data_of_pool = data_arena(arrays)
        try:
            work = await self._open(lowered, data_of_pool, arrays)
        finally:
            data_of_pool.close()
        ready = clock()
        await self._updates(work)
        updated = clock()
        tallies = (await self.pool.call({"op": "tallies"}, deadline=self.deadlines.opening)).body
        parameters = await self._parameters()
        await self.pool.close_fit()
        fitted = self._fitted(lowered, parameters)
        train = await score_rows(self.pool, fitted, self.plan.request.train)
        held_out = self.plan.request.test
        test = None if held_out is None else await score_rows(self.pool, fitted, held_out)
        validation = tallies["validation"] / 1e9
        seconds = FitSeconds(
            setup=ready - began, updates=updated - ready - validation, total=clock() - began,
            validation=None if self.plan.request.validation is None else validation,
        )  # fmt: skip
        return replace(self._outcome(fitted, train, tallies, seconds), test=test)

    async def _start(self, start_pool: Callable[[], Awaitable[None]]) -> dict[str, NDArray[Any]]:
        """Engines, daemons and data side by side; if one fails, the others have ended or are there to be ended."""
        arrays: dict[str, NDArray[Any]] = {}

        async def prepare() -> None:
            arrays.update(await asyncio.to_thread(self._prepare))

        await side_by_side([prepare(), start_pool(), self.group.members.start(self.plan.run)])
        return arrays

    def _prepare(self) -> dict[str, NDArray[Any]]:
        """Arrays for the engines: training rows, initial parameters, padded validation rows."""
        request, dtype = self.plan.request, self.plan.placement.dtype
        self.scaling: Scaling | None = data.fit_scaling(request.train.x) if request.standardize else None
        arrays: dict[str, NDArray[Any]] = {
            "x": data.features(request.train, self.scaling, dtype),
            "y": data.targets(request.train, dtype),
            "initial": request.initial.astype(dtype),
        }
        if request.validation is not None:
            arrays["vx"] = data.pad_rows(data.features(request.validation, self.scaling, dtype), SCORE_BLOCK)
            arrays["vy"] = data.pad_rows(data.targets(request.validation, dtype), SCORE_BLOCK)
        return arrays

    def _opening(self, lowered: Lowered) -> FitOpening:
        request, placement, schedule = self.plan.request, self.plan.placement, self.plan.schedule
        return FitOpening(
            sizes=self.plan.spec.sizes, schedule=schedule, artifacts=lowered.artifacts, slots=len(placement.owners),
            weights=placement.weights, held=schedule.updates_per_epoch, remote=self.group.buffers, state=lowered.state,
            keep_best=request.keep_best, validation_rows=0 if request.validation is None else len(request.validation),
        )  # fmt: skip

    async def _open(self, lowered: Lowered, arena: Arena, arrays: Mapping[str, NDArray[Any]]) -> Arena:
        """Bind the run everywhere and compare the canaries."""
        work = await self.pool.open(self._opening(lowered), [arena])
        found = await self.group.open(lowered.artifacts["gradient"], arrays, work["remote"][0])
        self.level = found.level
        self.notes += found.notes
        return work

    async def _updates(self, work: Arena) -> None:
        """All updates; raises NonFinite if one cannot be committed."""
        if not self.plan.placement.remote:
            await self._stretches()
            return
        stopped = await self.group.updates(work, self._committed)
        if isinstance(stopped, Stopped):
            raise await self._not_finite(stopped.update)

    async def _stretches(self) -> None:
        total, update = self.plan.schedule.updates, 0
        pace = UpdatePace(self.deadlines)
        while update < total:
            started = time.monotonic()
            call = {"op": "stretch", "until": total, "seconds": STRETCH}
            answer = (await self.pool.call(call, deadline=STRETCH + pace.deadline)).body
            pace.took(time.monotonic() - started)
            update = answer["update"]
            self._committed(answer)
            if answer["stopped"] is not None:
                raise await self._not_finite(update)

    def _committed(self, answer: Mapping[str, Any]) -> None:
        self.history += [self._epoch(line) for line in answer["epochs"]]
        now = time.monotonic()
        if answer["update"] < self.plan.schedule.updates and now - self.told < TELL_EVERY:
            return
        self.told = now
        last = self.history[-1] if self.history else None
        self.listener(
            Progress(
                phase="updates", done=answer["update"], total=self.plan.schedule.updates,
                loss=last.train.loss if last else None, epoch=last.epoch if last else None,
                validation_loss=last.validation.loss if last and last.validation else None,
            )
        )  # fmt: skip

    def _epoch(self, line: Mapping[str, Any]) -> EpochRecord:
        validation = None if line["validation"] is None else self._score(line["validation"])
        return EpochRecord(epoch=line["epoch"], train=self._score(line["train"]), validation=validation)

    def _score(self, sums: Sequence[float]) -> Score:
        return score_of(sums, self.plan.spec)

    async def _not_finite(self, update: int) -> NonFinite:
        """The error that names update, block, rows and member; parameters stay at the last committed update."""
        found = (await self.pool.call({"op": "diagnose"}, deadline=self.deadlines.opening)).body
        advice = "nothing of this update was committed; lower the rate, clip the gradient or look at these rows"
        if found["block"] is None:
            return NonFinite(
                f"update {update}: every sum is finite, but the updated parameters are not; {advice}", update=update
            )
        block, rows = int(found["block"]), list(found["rows"])
        member = self.group.owner_of(update, block)
        listed = ", ".join(map(str, rows[:8])) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
        return NonFinite(
            f"update {update}: the sums of block {block} (rows {listed}; member {member}) are not finite; {advice}",
            update=update, block=block, rows=rows, member=member,
        )  # fmt: skip

    async def _parameters(self) -> NDArray[Any]:
        out = Arena.create({"out": ((self.plan.spec.model.parameters,), self.plan.spec.dtype)})
        try:
            call = {"op": "parameters", "arena": out.describe()}
            await self.pool.call(call, arenas=[out], deadline=self.deadlines.opening)
            return np.array(out["out"])
        finally:
            out.close()

    def _fitted(self, lowered: Lowered, parameters: NDArray[Any]) -> FittedParts:
        programs = {name: lowered.artifacts[name] for name in ("score", "predict")}
        return FittedParts(
            spec=self.plan.spec, programs=programs, parameters=parameters, scaling=self.scaling,
            source=self.plan.request.train.source,
        )  # fmt: skip

    def _outcome(self, fitted: FittedParts, train: Score, tallies: Mapping[str, Any], seconds: FitSeconds) -> FitOutcome:
        best = tallies["best"]
        kept = None if best is None else int(best["epoch"])
        chosen = self.history[-1] if kept is None else self.history[kept]
        members = self.group.reports(tallies)
        self.notes += self.group.notes()
        return FitOutcome(
            fitted=fitted, digest=tensors.digest(fitted.parameters), level=self.level, updates=self.plan.schedule.updates,
            history=tuple(self.history), train=train, validation=chosen.validation, best_epoch=kept, members=members,
            seconds=seconds, notes=tuple(self.notes), manifest={},
        )  # fmt: skip
