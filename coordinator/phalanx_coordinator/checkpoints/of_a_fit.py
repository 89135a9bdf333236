"""The checkpoints of a fit: how one is taken from the canonical engine, and what a resumed fit finds in it."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx_coordinator.checkpoints.checkpoint import Checkpoint
from phalanx_coordinator.checkpoints.writer import CheckpointWriter
from phalanx_proto.errors import CorruptData, PhalanxError
from phalanx_proto.jobs import FitSeconds, MemberReport
from phalanx_worker.pool import Arena, Pool

Arrays = Mapping[str, NDArray[Any]]
Number = TypeVar("Number", int, float)
Making = Callable[[Mapping[str, Any], Arrays], Checkpoint]


@dataclass(kw_only=True)
class FitCheckpoints:
    """Takes checkpoints between two updates. The copy that the engine makes is written while the next updates run."""

    writer: CheckpointWriter
    pool: Pool
    layout: Mapping[str, tuple[tuple[int, ...], DTypeLike]]
    """The arrays of the engine's state, ``FitOpening.saved``."""
    make: Making
    """Puts the engine's answer and its arrays together with the rest."""
    deadline: float
    """Seconds for the engine to answer."""
    _arena: Arena | None = field(default=None, init=False)
    _asked: tuple[int, float] = field(default=(-1, 0.0), init=False)

    async def ask(self, update: int) -> bool:
        """Send the engine the request for its state after ``update`` updates, if one is wanted there; ``take`` then follows."""
        if not await self.writer.wanted(update):
            return False
        self._arena = self._arena or Arena.create(self.layout)
        self._asked = (update, time.monotonic())
        call = {"op": "save", "arena": self._arena.describe()}
        await self.pool.leader.send(call, descriptors=[self._arena.descriptor])
        return True

    async def take(self) -> None:
        """The engine's answer, which is written; dropped where the update before it was not committed."""
        assert self._arena is not None
        answer = (await self.pool.leader.receive(self.deadline, "a checkpoint")).body
        update, began = self._asked
        if answer["update"] == update:
            self.writer.write(self.make(answer, {name: self._arena[name] for name in self._arena.layout}), began)

    async def at(self, update: int) -> None:
        """Both, where nothing else is under way in the pool."""
        if await self.ask(update):
            await self.pool.followers.guard(self.take())

    async def close(self) -> PhalanxError | None:
        """Wait for the last write; returns what it raised."""
        error = await self.writer.close()
        if self._arena is not None:
            self._arena.close()
        return error


async def restore(pool: Pool, checkpoint: Checkpoint, layout: Mapping[str, Any], deadline: float) -> None:
    """Let the canonical engine go on from a checkpoint; raises ``CorruptData`` where it is none of this fit."""
    with_best = checkpoint.state.get("best") is not None
    wanted = {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in layout.items() if name != "best" or with_best}
    found = {name: (array.shape, array.dtype) for name, array in checkpoint.arrays.items() if name in wanted}
    if found != wanted:
        raise CorruptData(f"the checkpoint of update {checkpoint.update} has {found}, this fit needs {wanted}")
    arena = Arena.create(layout)
    try:
        for name in wanted:
            np.copyto(arena[name], checkpoint.arrays[name])
        best = best_of(checkpoint.state["best"])
        call = {"op": "restore", "arena": arena.describe(), "update": checkpoint.update, "best": best}
        await pool.call(call, arenas=[arena], deadline=deadline)
    finally:
        arena.close()


def best_of(kept: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The best epoch from a checkpoint's JSON, where its loss is written as ``float.hex`` writes it."""
    return None if kept is None else {"loss": float.fromhex(kept["loss"]), "epoch": int(kept["epoch"])}


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """What the earlier parts of a resumed fit did: information, of which nothing decides a number."""

    members: tuple[MemberReport, ...]
    seconds: FitSeconds

    @classmethod
    def of(cls, checkpoint: Checkpoint | None) -> "Earlier":
        """What a checkpoint tells; nothing where there is none."""
        if checkpoint is None:
            return cls(members=(), seconds=FitSeconds(setup=0.0, updates=0.0, validation=None, total=0.0))
        try:
            members = tuple(MemberReport(**member) for member in checkpoint.state["members"])
            return cls(members=members, seconds=FitSeconds(**checkpoint.state["seconds"]))
        except (KeyError, TypeError) as error:
            raise CorruptData(f"the checkpoint of update {checkpoint.update} cannot be read: {error}") from None

    def state(self, best: Mapping[str, Any] | None) -> dict[str, Any]:
        """The JSON values of a checkpoint of a fit that has done this so far."""
        kept = None if best is None else {"loss": float(best["loss"]).hex(), "epoch": best["epoch"]}
        members = [dataclasses.asdict(member) for member in self.members]
        return {"best": kept, "members": members, "seconds": dataclasses.asdict(self.seconds)}

    def and_then(self, members: Sequence[MemberReport], seconds: FitSeconds) -> "Earlier":
        """A later part after these: members of one name are one, those of the later part first."""
        return Earlier(members=together(members, self.members), seconds=sum_of(self.seconds, seconds))


def sum_of(first: FitSeconds, second: FitSeconds) -> FitSeconds:
    """Both parts of a fit."""
    validation = [part for part in (first.validation, second.validation) if part is not None]
    return FitSeconds(
        setup=first.setup + second.setup, updates=first.updates + second.updates,
        validation=sum(validation) if validation else None, total=first.total + second.total,
    )  # fmt: skip


def together(now: Sequence[MemberReport], before: Sequence[MemberReport]) -> tuple[MemberReport, ...]:
    """One report a name: the work of both parts, the device of the later one."""
    earlier = {member.name: member for member in before}
    found = [_added(member, earlier.pop(member.name, None)) for member in now]
    return (*found, *earlier.values())


def _added(now: MemberReport, before: MemberReport | None) -> MemberReport:
    if before is None:
        return now
    return dataclasses.replace(
        now, rows=_sum(now.rows, before.rows), updates=_sum(now.updates, before.updates),
        compute_seconds=_sum(now.compute_seconds, before.compute_seconds), losses=_sum(now.losses, before.losses or 0),
    )  # fmt: skip


def _sum(first: Number | None, second: Number | None) -> Number | None:
    """None where one was not measured."""
    return None if first is None or second is None else first + second
