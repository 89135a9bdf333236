"""The requests of an update that are under way with remote members: asked, read into the node area, told to the machine.

A member is asked one thing at a time, since its answers come in order on one stream. What waits for room, or for an earlier
request of the same member, is not late by the member's fault.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator.lockstep.instructions import Drop, Instruction, Replied, Send
from phalanx_coordinator.lockstep.node_area import NodeArea, Place
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_proto import blocks, reduction, wire
from phalanx_proto.errors import CorruptData
from phalanx_proto.schedule import Schedule


@dataclass(eq=False, kw_only=True)
class Exchange:
    """One request and its answer."""

    send: Send
    worker: RemoteWorker
    task: "asyncio.Task[None] | None" = None
    place: Place | None = None
    blocked: bool = False
    """Whether it waits for us, not for the member."""


class EpochRows:
    """The row ids of the updates of one epoch after another."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._ids = np.zeros((schedule.updates_per_epoch, schedule.capacity * schedule.block), np.int32)
        self._epoch = -1

    def of(self, update: int, lo: int, hi: int) -> NDArray[np.int32]:
        """The real rows of blocks [lo, hi) of an update."""
        epoch, index = self._schedule.epoch_of(update)
        if epoch != self._epoch:
            self._schedule.fill_epoch(self._ids, epoch)
            self._epoch = epoch
        block = self._schedule.block
        count = blocks.rows_in(lo, hi, block, self._schedule.rows_of(update))
        return self._ids[index, lo * block : lo * block + count]


@dataclass(kw_only=True)
class Exchanges:
    """All requests under way."""

    area: NodeArea
    schedule: Schedule
    parameters: Sequence[NDArray[np.generic]]
    """Where the parameters [P] of even and odd updates lie."""
    replied: Callable[[Replied], list[Instruction]]
    """Asks the machine what follows from a whole answer."""
    follow: Callable[[list[Instruction]], None]
    """Takes what follows when the nodes have been added."""
    failed: Callable[[RemoteWorker, Exception], None]
    """Told of a request that failed."""
    compute: dict[str, int]
    """Nanoseconds of computing by remote member, from their receipts."""
    answered: Callable[[str, float], None]
    """Told of each whole answer, and how many seconds after the request it came."""

    def __post_init__(self) -> None:
        self._rows = EpochRows(self.schedule)
        self._open: list[Exchange] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, send: Send, worker: RemoteWorker) -> None:
        """Ask for a range, after what the member was asked before."""
        exchange = Exchange(send=send, worker=worker)
        before = next((other.task for other in reversed(self._open) if other.worker is worker), None)
        if before is None:
            exchange.place = self._expected(send)
        self._open.append(exchange)
        exchange.task = task = asyncio.get_running_loop().create_task(self._carry_out(exchange, before))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _expected(self, send: Send) -> Place:
        return self.area.expect(reduction.maximal_nodes(send.lo, send.hi, self.schedule.blocks_of(send.update)))

    def withdraw(self, worker: RemoteWorker) -> None:
        """The member is lost: its requests end, and their buffers are free at once."""
        for exchange in [other for other in self._open if other.worker is worker]:
            self._open.remove(exchange)
            if exchange.place is not None:
                self.area.withdraw(exchange.place)
            if exchange.task is not None and exchange.task is not asyncio.current_task():
                exchange.task.cancel()

    def late(self) -> list[RemoteWorker]:
        """Members that could have answered and have not."""
        return list(dict.fromkeys(exchange.worker for exchange in self._open if not exchange.blocked))

    async def close(self) -> None:
        """End every request."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_out(self, exchange: Exchange, before: "asyncio.Task[None] | None") -> None:
        try:
            if before is not None:
                exchange.blocked = True
                await asyncio.wait({before})
                exchange.place = self._expected(exchange.send)
                exchange.blocked = False
            reply = await self._answer(exchange)
            self._open.remove(exchange)  # from here on the loss of the member changes nothing
            place = exchange.place
            assert place is not None
            following = self.replied(reply)
            if any(isinstance(instruction, Drop) for instruction in following):
                self.area.withdraw(place)
            else:
                await self.area.put(place)
            self.follow(following)
        except Exception as error:  # whatever it is, the run hears of it
            self.failed(exchange.worker, error)

    async def _answer(self, exchange: Exchange) -> Replied:
        send, worker, place = exchange.send, exchange.worker, exchange.place
        assert place is not None
        rows = self._rows.of(send.update, send.lo, send.hi)
        asked = time.monotonic()
        await worker.ask(send.update, send.lo, send.hi, rows, self.parameters[send.update & 1])
        exchange.blocked = True
        buffers = await self.area.take(place)
        exchange.blocked = False
        try:
            receipt = await worker.collect(send.update, wire.NodeReader(place.nodes, buffers))
        except CorruptData as error:
            raise CorruptData(f"worker {send.member}, update {send.update}: {error.message}") from error
        self.answered(send.member, time.monotonic() - asked)
        weight_at = self.parameters[0].size + 1
        weight = sum(float(values[weight_at]) for values in buffers.values())
        self.compute[send.member] = self.compute.get(send.member, 0) + (receipt.compute_ns or 0)
        return Replied(
            member=send.member, incarnation=send.incarnation, update=send.update, lo=send.lo, hi=send.hi,
            rows=receipt.rows, weight=weight,
        )  # fmt: skip
