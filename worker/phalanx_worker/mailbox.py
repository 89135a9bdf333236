"""The shared memory of one fit on one machine: parameters, rows and nodes, and one mailbox a slot.

The leader (slot 0) writes a slot's plan, then its ``GO`` word; the slot writes its nodes and receipt, then its ``DONE``
word. Waiting spins for a moment, since a wake-up of an idle core costs more than a short update, and then sleeps.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx_proto import reduction
from phalanx_proto.errors import EngineFailed
from phalanx_proto.experiment import Sizes
from phalanx_proto.schedule import Schedule
from phalanx_worker.arena import Arena

GO, DONE, ROWS_DONE, NODES, COMPUTE, READBACK, BUFFER, PLAN = 0, 1, 2, 3, 4, 5, 6, 8
"""Int64 words of a mailbox; the plan's int32 words follow from ``PLAN``."""
LEAVE = -1
SPIN = 400e-6
"""Seconds of spinning before a waiter sleeps: longer than folding and committing a usual update."""
NAP = 30e-6
FLOATS_A_LINE = 32

_fence = threading.Lock()


def fence() -> None:
    """Order the memory accesses before this call before those after it, on any processor.

    Two critical sections of one lock: nothing moves out of a section, so nothing passes from before the first to after
    the second or back.
    """
    for _ in range(2):
        with _fence:
            pass


def padded(count: int) -> int:
    """``count`` values rounded up so that the next row starts aligned."""
    return -(-count // FLOATS_A_LINE) * FLOATS_A_LINE


@dataclass(frozen=True, kw_only=True)
class FitShape:
    """All sizes of a fit on one machine."""

    sizes: Sizes
    schedule: Schedule
    slots: int
    held: int
    """Updates whose rows are held at once: those of an epoch, or 1 where rows arrive update by update."""
    remote: int = 0
    """Nodes that other machines may send for one update."""

    def layout(self) -> Mapping[str, tuple[tuple[int, ...], DTypeLike]]:
        """The arrays of the arena. Pages that nobody touches cost nothing."""
        capacity = self.schedule.capacity
        depth, size = reduction.stack_depth(capacity), padded(self.sizes.node_size)
        return {
            "mailboxes": ((self.slots, 32 + capacity // 2 + 1), np.int64),
            "parameters": ((2, padded(self.sizes.parameters)), self.sizes.dtype),
            "ids0": ((self.held, capacity * self.sizes.block), np.int32),
            "ids1": ((self.held, capacity * self.sizes.block), np.int32),
            "nodes": ((self.slots, depth, size), np.float64),
            "root": ((depth, self.sizes.node_size), np.float64),
            "remote": ((max(self.remote, depth), self.sizes.node_size), np.float64),
        }


class Mailbox:
    """One slot's mailbox, seen from either side."""

    def __init__(self, arena: Arena, slot: int, plan_words: int) -> None:
        self.words: NDArray[np.int64] = arena["mailboxes"][slot]
        self.plan: NDArray[np.int32] = self.words[PLAN:].view(np.int32)[:plan_words]
        self.nodes: NDArray[np.float64] = arena["nodes"][slot]

    def post(self, word: int, value: int) -> None:
        """Publish ``value`` after everything written before."""
        fence()
        self.words[word] = value

    def wait(self, word: int, value: int, alive: Callable[[], None], timeout: float) -> bool:
        """Until the word is ``value`` (True) or LEAVE (False). ``alive`` is asked now and then and may raise."""
        words, clock = self.words, time.monotonic
        started = clock()
        while (seen := int(words[word])) != value:
            if seen == LEAVE:
                return False
            waited = clock() - started
            if waited < SPIN:
                continue
            alive()
            if waited > timeout:
                raise EngineFailed(f"a slot of this machine did not answer within {timeout:.0f} s")
            time.sleep(NAP if waited < 0.1 else 1e-3)
        fence()
        return True


def let_go(arena: Arena) -> None:
    """Let every slot but the leader's leave its mailbox, at once or as soon as it looks."""
    fence()
    arena["mailboxes"][1:, GO] = LEAVE


def row_buffers(arena: Arena) -> list[NDArray[Any]]:
    """The two row buffers, flat [held x capacity x block]; epochs (or updates) alternate between them."""
    return [arena["ids0"].reshape(-1), arena["ids1"].reshape(-1)]
