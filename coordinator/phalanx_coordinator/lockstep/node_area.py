"""Where the nodes of remote members land: a few buffers in shared memory, merged as soon as two siblings are there.

Ranges take buffers from left to right and give them back as the tree closes, so the memory of an update is O(P log n) for
n blocks, not O(P x members). A lost member's buffers are free again; what it owed is taken by other ranges, and what lies
apart because of that may hold some buffers more. Additions are those of the reduction tree, in its order.
"""

import asyncio
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import reduction
from phalanx_proto.errors import WorkerLost

Node = tuple[int, int]
ROOMY = 64 << 20
"""Bytes: below this every member gets its buffers at once."""
INLINE_BYTES = 4 << 20
"""Values up to this size are added on the loop; larger ones in a thread."""


def buffers_needed(blocks: int, local: Sequence[bool], node_bytes: int) -> int:
    """Buffers for any update of at most ``blocks`` blocks: for all members where that is little, else O(log n).

    ``local`` says of each member, in order, whether it computes in the coordinator's pool. A range has at most
    ``stack_depth`` maximal nodes, and neighbours merge: what is held is at most that for each run of remote members
    without a local one between, and the member whose turn it is needs as much again.
    """
    depth = reduction.stack_depth(blocks)
    everybody = depth * sum(not here for here in local)
    if everybody * node_bytes <= ROOMY:
        return max(everybody, 1)
    runs = sum(not here for here, _ in groupby(local))
    return min(everybody, (runs + 1) * depth)


def buffers_in_reserve(blocks: int, local: Sequence[bool]) -> int:
    """Buffers that any number of losses in one update can need, or so many that more losses end the run.

    All nodes in use are different ones, so there are never more than blocks. A buffer that is never used costs no memory.
    """
    return min(blocks, 4 * reduction.stack_depth(blocks) * (1 + sum(not here for here in local)))


class NoRoom(WorkerLost):
    """More lies apart than there are buffers for. It ends the run; no single member is to blame."""


@dataclass(eq=False)
class Place:
    """The nodes of one range on their way; settled when they are put or withdrawn."""

    nodes: tuple[Node, ...]
    taken: bool = False
    settled: bool = False
    buffers: dict[Node, int] = field(default_factory=dict)

    @property
    def lo(self) -> int:
        """Its first block."""
        return self.nodes[0][0]


class NodeArea:
    """The buffers [count, N] of one update after another; ``usual`` of them are enough where nobody is lost."""

    def __init__(self, buffers: NDArray[np.float64], size: int, usual: int | None = None) -> None:
        self._buffers, self._size = buffers, size
        self._usual = len(buffers) if usual is None else min(usual, len(buffers))
        self._waiting: list[asyncio.Future[None]] = []
        self.begin(1)

    def begin(self, blocks: int) -> None:
        """Forget the last update."""
        self._blocks = blocks
        self._free = list(reversed(range(len(self._buffers))))  # so that the leftmost node, and the root, get buffer 0
        self._index: dict[Node, int] = {}
        self._present: set[Node] = set()
        self._queue: list[Place] = []
        self._under_way = 0
        self._merging = 0
        self.most = 0
        """Most buffers in use at once in this update."""

    def expect(self, nodes: Sequence[Node]) -> Place:
        """A place for the nodes of a range; it is served after those to its left that are expected and not yet served."""
        place = Place(nodes=tuple(nodes))
        insort(self._queue, place, key=lambda one: one.lo)
        return place

    async def take(self, place: Place) -> dict[Node, NDArray[np.float64]]:
        """Buffers [N] for its nodes, when it is its turn and there is room. Raises NoRoom."""
        if not self._may_take(place):
            await self._wait(lambda: self._may_take(place))
        if len(self._free) < len(place.nodes):
            raise NoRoom("more members were lost in one update than there are buffers for; resume the job")
        self._queue.pop(0)
        place.taken = True
        self._under_way += 1
        place.buffers = {node: self._free.pop() for node in place.nodes}
        self.most = max(self.most, len(self._buffers) - len(self._free))
        self._tell()
        return {node: self._value(index) for node, index in place.buffers.items()}

    def _may_take(self, place: Place) -> bool:
        if self._queue[0] is not place:
            return False
        used = len(self._buffers) - len(self._free)
        # with nothing under way, nothing becomes free by waiting: what was computed lies apart, since members were lost
        return used + len(place.nodes) <= self._usual or not (self._under_way or self._merging)

    async def put(self, place: Place) -> None:
        """Its nodes are whole, and count: merge what can be merged."""
        place.settled = True
        self._under_way -= 1
        self._merging += 1
        self._index.update(place.buffers)
        for node in place.nodes:
            self._present.add(node)
            while (pair := self._siblings(node)) is not None:
                left, right = pair
                self._present -= {left, right}
                await self._add(self._value(self._index[left]), self._value(self._index[right]))
                self._free.append(self._index.pop(right))
                node = (left[0], right[1])
                self._index[node] = self._index.pop(left)
                self._present.add(node)
        self._merging -= 1
        self._tell()

    def withdraw(self, place: Place) -> None:
        """Its nodes do not come, or do not count."""
        if place.settled:
            return
        place.settled = True
        if place.taken:
            self._under_way -= 1
            self._free += reversed(place.buffers.values())
        else:
            self._queue.remove(place)
        self._tell()

    async def settled(self) -> None:
        """Until everything that was put is merged."""
        if self._merging:
            await self._wait(lambda: not self._merging)

    @property
    def held(self) -> list[tuple[int, int, int]]:
        """(lo, hi, buffer) of what is there, left to right."""
        return sorted((lo, hi, self._index[lo, hi]) for lo, hi in self._present)

    def _value(self, index: int) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self._buffers[index][: self._size]
        return found

    def _siblings(self, node: Node) -> tuple[Node, Node] | None:
        parent = reduction.parent(node, self._blocks)
        if parent is None:
            return None
        middle = (parent[0] + parent[1]) // 2
        pair = (parent[0], middle), (middle, parent[1])
        return pair if pair[0] in self._present and pair[1] in self._present else None

    async def _add(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> None:
        if left.nbytes <= INLINE_BYTES:
            _sum_into(left, right)
        else:
            await asyncio.to_thread(_sum_into, left, right)

    async def _wait(self, ready: Callable[[], bool]) -> None:
        while not ready():
            changed = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed

    def _tell(self) -> None:
        for changed in self._waiting:
            if not changed.done():
                changed.set_result(None)
        self._waiting.clear()


def _sum_into(left: NDArray[np.float64], right: NDArray[np.float64]) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found at the root
        np.add(left, right, out=left)
