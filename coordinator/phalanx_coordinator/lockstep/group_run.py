"""The edge of the lockstep: carries out what ``machine.Lockstep`` says, over gRPC and the canonical engine's pipe.

Each ``Send`` is a task that asks, reads and tells the machine; the loss of a member is told by its process, by its stream
or by the clock. Whatever is told, the machine answers with instructions, and they are carried out one after another.
"""

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from phalanx_coordinator.checkpoints.of_a_fit import FitCheckpoints
from phalanx_coordinator.lockstep.exchanges import Exchanges
from phalanx_coordinator.lockstep.instructions import (
    Abort,
    Commit,
    Committed,
    Finish,
    Instruction,
    Joined,
    Lost,
    Part,
    Send,
    Tell,
)
from phalanx_coordinator.lockstep.machine import Lockstep
from phalanx_coordinator.lockstep.node_area import NodeArea, NoRoom
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.members.timing import UpdatePace
from phalanx_proto import blocks
from phalanx_proto.errors import InvalidRequest, LedgerMismatch, NonFinite, PhalanxError, ProgramRefused, WorkerLost
from phalanx_proto.experiment import Sizes
from phalanx_proto.schedule import Schedule
from phalanx_worker.pool import Arena, Pool

NO_RANGE = (0, 0)
ENDING = (InvalidRequest, ProgramRefused, LedgerMismatch, NonFinite, NoRoom)
"""What every other member would answer as well, or what nobody may go on after; all else is the loss of one member."""


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """The update was not committed, since a sum was not finite."""

    update: int


def _ignore_tell(told: Tell) -> None:
    """For those who keep no history."""


def _ignore_loss(worker: RemoteWorker, error: WorkerLost) -> None:
    """For those who bring nobody back."""


def _ignore_answer(member: str, seconds: float) -> None:
    """For those who show nobody how fast members are."""


@dataclass(kw_only=True)
class GroupRun:
    """One fit of a group with remote members."""

    machine: Lockstep
    pool: Pool
    owners: Sequence[str | None]
    """For each slot of the pool the local member it works for."""
    workers: dict[str, RemoteWorker]
    """Those who are there now, by name; a lost one is taken out."""
    work: Arena
    sizes: Sizes
    schedule: Schedule
    pace: UpdatePace
    usual: int | None = None
    """Buffers of the node area that are enough where nobody is lost; None for all."""
    on_commit: Callable[[dict[str, Any]], None]
    """Told of each committed update: the canonical engine's answer."""
    tell: Callable[[Tell], None] = _ignore_tell
    """Told of each change of the group."""
    checkpoints: FitCheckpoints | None = None
    on_lost: Callable[[RemoteWorker, WorkerLost], None] = _ignore_loss
    """Given each lost member's connection, to end it."""
    compute: dict[str, int] = field(default_factory=dict)
    """Nanoseconds of computing by remote member, from their receipts."""
    answered: Callable[[str, float], None] = _ignore_answer
    """Told of each answer of a member, and how many seconds it took."""

    def __post_init__(self) -> None:
        self._area = NodeArea(self.work["remote"], self.sizes.node_size, self.usual)
        parameters: list[NDArray[Any]] = [buffer[: self.sizes.parameters] for buffer in self.work["parameters"]]
        self._exchanges = Exchanges(
            area=self._area, schedule=self.schedule, parameters=parameters, replied=self.machine.handle, follow=self._follow,
            failed=self._failed, compute=self.compute, answered=self.answered,
        )  # fmt: skip
        self._todo: deque[Instruction] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._watched: list[tuple[asyncio.Future[WorkerLost], Callable[[asyncio.Future[WorkerLost]], None]]] = []
        self._part_sent = -1
        self._owed = 0

    async def run(self) -> Stopped | None:
        """Every update to the end, or the first that cannot be committed. Raises what ends the run."""
        self._end: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        task: asyncio.Future[Stopped | None] = asyncio.ensure_future(self.pool.followers.guard(self._run()))
        for worker in list(self.workers.values()):
            self._watch(worker)
        try:
            either: tuple[asyncio.Future[Any], ...] = (task, self._end)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self._end.result()
            return task.result()
        finally:
            self._end.cancel()
            if self._clock is not None:
                self._clock.cancel()
            for lost, callback in self._watched:
                lost.remove_done_callback(callback)
            task.cancel()
            await self._exchanges.close()
            await asyncio.gather(task, return_exceptions=True)  # what it raised meanwhile only follows from what is raised here

    def join(self, worker: RemoteWorker) -> None:
        """Take in a member that was lost, or absent from the beginning; it has opened the run."""
        if not self._end.done():
            self.workers[worker.name] = worker
            self._watch(worker)
            self._follow(self.machine.handle(Joined(member=worker.name, incarnation=worker.incarnation)))

    async def _run(self) -> Stopped | None:
        self._begin(self.machine.begin())
        while True:
            while self._todo:
                match instruction := self._todo.popleft():
                    case Send():
                        self._send(instruction)
                    case Part():
                        await self._send_part(instruction)
                    case Tell():
                        self.tell(instruction)
                    case Commit():
                        stopped = await self._commit()
                        if stopped is not None:
                            return stopped
                    case Finish():
                        return None
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def _begin(self, instructions: list[Instruction]) -> None:
        """The first instructions of an update."""
        self._area.begin(self.schedule.blocks_of(self.machine.update))
        self._started = time.monotonic()
        self._set_clock()
        self._follow(instructions)

    def _follow(self, instructions: list[Instruction]) -> None:
        """Have instructions carried out after those before; the end of the run waits for nothing."""
        for instruction in instructions:
            if isinstance(instruction, Abort):
                self._fail(instruction.error)
        self._todo.extend(instructions)
        if instructions and self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._end.done():
            self._end.set_result(error)

    def _set_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
        self._clock = asyncio.get_running_loop().call_later(self.pace.deadline, self._expired)

    def _expired(self) -> None:
        """The update took too long: those who could have answered are lost."""
        update, seconds, late = self.machine.update, self.pace.deadline, self._exchanges.late()
        if not late or self.machine.on_loss == "abort":
            who = ", ".join(self.machine.owing()) or "the canonical engine"
            self._fail(WorkerLost(f"update {update}: {who} did not answer within {seconds:.0f} s", update=update))
            return
        for worker in late:
            what = f"worker {worker.name} did not answer update {update} within {seconds:.0f} s"
            self._lose(worker, WorkerLost(what, worker=worker.name, update=update))

    def _watch(self, worker: RemoteWorker) -> None:
        callback = functools.partial(self._gone, worker)
        self._watched.append((worker.process.lost, callback))
        worker.process.lost.add_done_callback(callback)

    def _gone(self, worker: RemoteWorker, lost: "asyncio.Future[WorkerLost]") -> None:
        if not lost.cancelled():
            self._lose(worker, lost.result())

    def _failed(self, worker: RemoteWorker, error: Exception) -> None:
        """A request failed: the end of the run, or of one member's part in it."""
        if isinstance(error, ENDING) or not isinstance(error, PhalanxError) or self.machine.on_loss == "abort":
            self._fail(error)
        else:
            self._lose(worker, error if isinstance(error, WorkerLost) else WorkerLost(error.message, worker=worker.name))

    def _lose(self, worker: RemoteWorker, error: WorkerLost) -> None:
        if self._end.done() or self.workers.get(worker.name) is not worker:
            return
        del self.workers[worker.name]
        self._exchanges.withdraw(worker)
        self._follow(self.machine.handle(Lost(member=worker.name, incarnation=worker.incarnation, error=error)))
        self._set_clock()  # others may have more to do now
        self.on_lost(worker, error)

    def _send(self, send: Send) -> None:
        worker = self.workers.get(send.member)
        if worker is not None and worker.incarnation == send.incarnation:  # else lost meanwhile, and others were asked
            self._exchanges.begin(send, worker)

    async def _send_part(self, part: Part) -> None:
        if part.attempt == 0 and self._part_sent >= part.update:
            return
        split = {name: self._split(name, *span, part.update) for name, span in part.ranges}
        slots = [next(split[owner]) if owner in split else NO_RANGE for owner in self.owners]
        await self.pool.leader.send({"op": "part", "ranges": slots})
        self._part_sent, self._owed = part.update, self._owed + 1

    def _split(self, name: str, lo: int, hi: int, update: int) -> Any:
        count = sum(owner == name for owner in self.owners)
        return iter(blocks.split_even(lo, hi, count, update))

    async def _commit(self) -> Stopped | None:
        """Commit, and let the pool begin its part of the next update while the answer is on its way."""
        update, leader = self.machine.update, self.pool.leader
        await self._area.settled()
        await leader.send({"op": "commit", "remote": self._area.held})
        owed, self._owed = self._owed, 0
        kept = self.checkpoints is not None and await self.checkpoints.ask(update + 1)  # before the next part begins
        ahead = self.machine.ahead()
        if ahead is not None:
            await self._send_part(ahead)
        for _ in range(owed):
            await leader.receive(None, "its part")
        answer = (await leader.receive(None, "a commit", soon=True)).body
        if answer["stopped"] is None:
            self.on_commit(answer)
        if kept and self.checkpoints is not None:
            await self.checkpoints.take()
        if answer["stopped"] is not None:
            for _ in range(self._owed):
                await leader.receive(None, "its part")
            return Stopped(update=update)
        if self.machine.attempt == 0:
            self.pace.took(time.monotonic() - self._started)
        self._begin(self.machine.handle(Committed(update=update)))
        return None
