"""The edge of the lockstep: carries out what ``lockstep.Lockstep`` says, over gRPC and the canonical engine's pipe."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator.lockstep import Abort, Commit, Committed, Finish, Instruction, Lockstep, Part, Replied, Send
from phalanx_coordinator.node_area import NodeArea
from phalanx_coordinator.remote import RemoteWorker
from phalanx_coordinator.timing import UpdatePace
from phalanx_proto import blocks, reduction, wire
from phalanx_proto.errors import CorruptData, WorkerLost
from phalanx_proto.experiment import Sizes
from phalanx_proto.schedule import Schedule
from phalanx_worker.pool import Arena, Pool

Result = TypeVar("Result")
NO_RANGE = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """The update was not committed, since a sum was not finite."""

    update: int


@dataclass(kw_only=True)
class GroupRun:
    """One fit of a group with remote members."""

    machine: Lockstep
    pool: Pool
    owners: Sequence[str | None]
    """For each slot of the pool the local member it works for."""
    workers: Mapping[str, RemoteWorker]
    work: Arena
    sizes: Sizes
    schedule: Schedule
    pace: UpdatePace
    on_commit: Callable[[dict[str, Any]], None]
    """Told of each committed update: the canonical engine's answer."""
    compute: dict[str, int] = field(default_factory=dict)
    """Nanoseconds of computing by remote member, from their receipts."""

    def __post_init__(self) -> None:
        self._area = NodeArea(self.work["remote"], self.sizes.node_size)
        self._ids = np.zeros((self.schedule.updates_per_epoch, self.schedule.capacity * self.schedule.block), np.int32)
        self._parameters: list[NDArray[Any]] = [buffer[: self.sizes.parameters] for buffer in self.work["parameters"]]
        self._epoch = -1
        self._part_sent = -1
        self._owed = 0

    async def run(self) -> Stopped | None:
        """Every update to the end, or the first that cannot be committed. Raises what ends the run."""
        return await guarded(self.pool.followers.guard(self._run()), self.workers.values())

    async def _run(self) -> Stopped | None:
        instructions = self.machine.begin()
        while True:
            started = time.monotonic()
            update = self.machine.update
            try:
                async with asyncio.timeout(self.pace.deadline):
                    instructions = await self._carry_out(instructions)
            except TimeoutError:
                raise self._late(update) from None
            self.pace.took(time.monotonic() - started)
            match instructions:
                case [Finish()]:
                    return None
                case [Abort(error=error)]:
                    raise error
                case [Stopped() as stopped]:
                    return stopped

    async def _carry_out(self, instructions: Sequence[Instruction]) -> list[Any]:
        """One update from its first request to its commit; returns what the machine wants next."""
        sends = [instruction for instruction in instructions if isinstance(instruction, Send)]
        for instruction in instructions:
            if isinstance(instruction, Part):
                await self._send_part(instruction)
        self._area.begin(self.schedule.blocks_of(self.machine.update))
        following: list[Instruction] = [i for i in instructions if isinstance(i, Commit | Abort)]
        if len(sends) == 1:
            following += self.machine.handle(await self._exchange(0, sends[0]))
        elif sends:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._exchange(turn, send)) for turn, send in enumerate(sends)]
            for task in tasks:
                following += self.machine.handle(task.result())
        if any(isinstance(instruction, Abort) for instruction in following):
            return [i for i in following if isinstance(i, Abort)]
        return await self._commit()

    async def _send_part(self, part: Part) -> None:
        if self._part_sent >= part.update:
            return
        ranges = dict(part.ranges)
        split = {name: self._split(name, *span, part.update) for name, span in ranges.items()}
        slots = [NO_RANGE if owner is None else next(split[owner]) for owner in self.owners]
        await self.pool.leader.send({"op": "part", "ranges": slots})
        self._part_sent, self._owed = part.update, self._owed + 1

    def _split(self, name: str, lo: int, hi: int, update: int) -> Any:
        count = sum(owner == name for owner in self.owners)
        return iter(blocks.split_even(lo, hi, count, update))

    async def _exchange(self, turn: int, send: Send) -> Replied:
        worker = self.workers[send.member]
        rows = self._rows(send)
        await worker.ask(send.update, send.lo, send.hi, rows, self._parameters[send.update & 1])
        nodes = reduction.maximal_nodes(send.lo, send.hi, self.schedule.blocks_of(send.update))
        buffers = await self._area.take(turn, nodes)
        try:
            receipt = await worker.collect(send.update, wire.NodeReader(nodes, buffers))
        except CorruptData as error:
            raise CorruptData(f"worker {send.member}, update {send.update}: {error.message}") from error
        weight = sum(float(values[self.sizes.parameters + 1]) for values in buffers.values())
        await self._area.put(nodes)
        self.compute[send.member] = self.compute.get(send.member, 0) + (receipt.compute_ns or 0)
        return Replied(
            member=send.member, incarnation=worker.incarnation, update=send.update, lo=send.lo, hi=send.hi,
            rows=receipt.rows, weight=weight,
        )  # fmt: skip

    def _rows(self, send: Send) -> NDArray[np.int32]:
        epoch, index = self.schedule.epoch_of(send.update)
        if epoch != self._epoch:
            self.schedule.fill_epoch(self._ids, epoch)
            self._epoch = epoch
        block = self.schedule.block
        count = blocks.rows_in(send.lo, send.hi, block, self.schedule.rows_of(send.update))
        return self._ids[index, send.lo * block : send.lo * block + count]

    async def _commit(self) -> list[Any]:
        """Commit, and let the pool begin its part of the next update while the answer is on its way."""
        update, leader = self.machine.update, self.pool.leader
        await leader.send({"op": "commit", "remote": self._area.held})
        owed, self._owed = self._owed, 0
        if update + 1 < self.schedule.updates:
            local = tuple((member.name, span) for member, span in self.machine.shares(update + 1) if member.local)
            if any(lo < hi for _, (lo, hi) in local):
                await self._send_part(Part(update=update + 1, ranges=local))
        for _ in range(owed):
            await leader.receive(None, "its part")
        answer = (await leader.receive(None, "a commit")).body
        if answer["stopped"] is not None:
            for _ in range(self._owed):
                await leader.receive(None, "its part")
            return [Stopped(update=update)]
        self.on_commit(answer)
        return list(self.machine.handle(Committed(update=update)))

    def _late(self, update: int) -> WorkerLost:
        answered = self.machine.answered
        late = [m.name for m, (lo, hi) in self.machine.shares(update) if lo < hi and m.name not in answered]
        who = ", ".join(late) or "the canonical engine"
        return WorkerLost(f"update {update}: {who} did not answer within {self.pace.deadline:.0f} s", update=update)


async def guarded(work: Coroutine[Any, Any, Result], workers: Any) -> Result:
    """Await ``work``, but end it as soon as a worker is lost; raises that worker's error."""
    task = asyncio.ensure_future(work)
    lost = {worker.process.lost for worker in workers}
    try:
        await asyncio.wait({task, *lost}, return_when=asyncio.FIRST_COMPLETED)
        gone = [future.result() for future in lost if future.done() and not future.cancelled()]
        if gone and not task.done():
            raise gone[0]
        return task.result()
    except BaseExceptionGroup as failures:
        raise first_error(failures) from None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # what it raised meanwhile only follows from what is raised here


def first_error(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first failure inside nested groups."""
    first = failures.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
