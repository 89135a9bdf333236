"""The slots of one machine in lockstep on one update: a leader and its followers, over shared memory.

``Follower.serve`` computes what its mailbox asks until it is released. ``Leader`` shares a range of blocks over the slots and
collects the maximal nodes of the range. Neither knows what an update is for; ``fit.py`` beside it does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import blocks, reduction
from phalanx_proto.errors import EngineFailed, LedgerMismatch
from phalanx_worker import mailbox
from phalanx_worker.arena import Arena
from phalanx_worker.engine import PLAN_HEADER, FitEngine, Times, merges_of, plan_words
from phalanx_worker.mailbox import FitShape, Mailbox

Range = tuple[int, int]
Nodes = dict[Range, NDArray[np.float64]]


@dataclass(kw_only=True)
class Tally:
    """What one slot has done so far; times in nanoseconds."""

    rows: int = 0
    updates: int = 0
    compute: int = 0
    readback: int = 0

    def add(self, rows: int, times: Times) -> None:
        """Count one accepted update."""
        self.rows += rows
        self.updates += 1 if rows else 0
        self.compute += times.compute
        self.readback += times.readback


@dataclass(frozen=True, kw_only=True)
class Work:
    """One slot's part of one update."""

    update: int
    lo: int
    hi: int
    blocks: int
    """Blocks of the whole update: the size of the reduction tree."""
    rows: int
    """Real rows of the whole update."""
    offset: int
    """Position of block ``lo`` in the flat row buffer."""

    def write(self, plan: NDArray[np.int32], block: int) -> int:
        """Fill an engine's plan; returns the real rows of the range."""
        rows = blocks.rows_in(self.lo, self.hi, block, self.rows)
        plan[:5] = (self.offset, rows, self.hi - self.lo, self.update, self.lo)
        plan[PLAN_HEADER : PLAN_HEADER + self.hi - self.lo] = merges_of(self.lo, self.hi, self.blocks)
        return rows


class Follower:
    """A slot that serves its mailbox with an engine of its own."""

    def __init__(self, engine: FitEngine, arena: Arena, shape: FitShape, slot: int) -> None:
        self._engine, self._arena = engine, arena
        self._mail = Mailbox(arena, slot, plan_words(shape.schedule.capacity))
        self._ids = mailbox.row_buffers(arena)
        self._size, self._parameters = shape.sizes.node_size, shape.sizes.parameters

    def serve(self, alive: Callable[[], None]) -> None:
        """Compute every update the leader posts, until it posts LEAVE. ``alive`` raises to end it early."""
        done = int(self._mail.words[mailbox.DONE])
        while self._mail.wait(mailbox.GO, done + 1, alive, float("inf")):
            self._compute()
            done += 1
            self._mail.post(mailbox.DONE, done)

    def _compute(self) -> None:
        words, plan = self._mail.words, self._mail.plan
        count = 0
        if plan[2]:
            buffer = int(words[mailbox.BUFFER])
            parameters = self._arena["parameters"][buffer & 1][: self._parameters]
            stack, times = self._engine.nodes(parameters, self._ids[buffer >> 1], plan)
            count = int(plan[2] - plan[PLAN_HEADER : PLAN_HEADER + plan[2]].sum())
            np.copyto(self._mail.nodes[:count, : self._size], np.asarray(stack)[:count])
            words[mailbox.COMPUTE], words[mailbox.READBACK] = times.compute, times.readback
        words[mailbox.ROWS_DONE], words[mailbox.NODES] = plan[1], count


@dataclass(kw_only=True)
class Leader:
    """Slot 0: shares each update over the slots of this machine, its own engine included."""

    engine: FitEngine
    arena: Arena
    shape: FitShape
    alive: Callable[[], None]
    timeout: float
    """Seconds for the other slots to answer one update."""
    tallies: list[Tally] = field(init=False)

    def __post_init__(self) -> None:
        words = plan_words(self.shape.schedule.capacity)
        self._mail = [Mailbox(self.arena, slot, words) for slot in range(self.shape.slots)]
        self._posted = [0] * self.shape.slots
        self._ids = mailbox.row_buffers(self.arena)
        self._plan = np.zeros(words, np.int32)
        self._parameters = self.arena["parameters"]
        self.own_spans: set[Range] = set()
        self.reset_tallies()

    def reset_tallies(self) -> None:
        """Forget what was counted so far, such as canaries."""
        self.tallies = [Tally() for _ in range(self.shape.slots)]

    def publish(self, parameters: Any, update: int) -> None:
        """Copy the parameters [P] to where the other slots, and the coordinator, read those of this update."""
        size = self.shape.sizes.parameters
        np.copyto(self._parameters[update & 1][:size], np.asarray(parameters))

    def nodes(self, parameters: Any, update: int, ranges: Sequence[Range], held: int, buffer: int) -> Nodes:
        """The maximal nodes of every slot's range; ``publish`` has run where another slot has a range.

        ``held`` is the update's place in row buffer number ``buffer``. The arrays returned are views that the next call
        overwrites.
        """
        schedule, block = self.shape.schedule, self.shape.sizes.block
        base = held * schedule.capacity * block
        work = [
            Work(update=update, lo=lo, hi=hi, blocks=schedule.blocks_of(update), rows=schedule.rows_of(update),
                 offset=base + lo * block)
            for lo, hi in ranges
        ]  # fmt: skip
        word = (update & 1) | buffer << 1
        for slot in range(1, len(work)):
            if work[slot].lo < work[slot].hi:
                self._post(slot, work[slot], word)
        found = self._own(parameters, work[0], self._ids[buffer])
        for slot in range(1, len(work)):
            if work[slot].lo < work[slot].hi:
                self._collect(slot, work[slot], found)
        return found

    def _post(self, slot: int, work: Work, word: int) -> None:
        mail = self._mail[slot]
        work.write(mail.plan, self.shape.sizes.block)
        mail.words[mailbox.BUFFER] = word
        self._posted[slot] += 1
        mail.post(mailbox.GO, self._posted[slot])

    def _own(self, parameters: Any, work: Work, ids: Any) -> Nodes:
        self.own_spans = set()
        if work.lo == work.hi:
            return {}
        rows = work.write(self._plan, self.shape.sizes.block)
        stack, times = self.engine.nodes(parameters, ids, self._plan)
        self.tallies[0].add(rows, times)
        maximal = reduction.maximal_nodes(work.lo, work.hi, work.blocks)
        self.own_spans = set(maximal)
        values = np.asarray(stack)
        return {span: values[i] for i, span in enumerate(maximal)}

    def _collect(self, slot: int, work: Work, found: Nodes) -> None:
        mail = self._mail[slot]
        if not mail.wait(mailbox.DONE, self._posted[slot], self.alive, self.timeout):
            raise EngineFailed(f"slot {slot} left during update {work.update}")
        rows = blocks.rows_in(work.lo, work.hi, self.shape.sizes.block, work.rows)
        maximal = reduction.maximal_nodes(work.lo, work.hi, work.blocks)
        if int(mail.words[mailbox.ROWS_DONE]) != rows or int(mail.words[mailbox.NODES]) != len(maximal):
            raise LedgerMismatch(f"slot {slot} accounted for other rows than update {work.update} gave it")
        times = Times(prepare=0, compute=int(mail.words[mailbox.COMPUTE]), readback=int(mail.words[mailbox.READBACK]))
        self.tallies[slot].add(rows, times)
        size = self.shape.sizes.node_size
        found.update({span: mail.nodes[i][:size] for i, span in enumerate(maximal)})

    def release(self) -> None:
        """Let the other slots leave their mailboxes."""
        mailbox.let_go(self.arena)
