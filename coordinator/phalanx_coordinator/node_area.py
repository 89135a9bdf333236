"""Where the nodes of remote members land: a few buffers in shared memory, merged as soon as two siblings are there.

Members take buffers in their fixed order and give them back as the tree closes, so the memory of an update is O(P log n) for
n blocks, not O(P x members). Additions are those of the reduction tree, in its order.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import reduction

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


class NodeArea:
    """The buffers [count, N] of one update after another."""

    def __init__(self, buffers: NDArray[np.float64], size: int) -> None:
        self._buffers, self._size = buffers, size
        self._changed = asyncio.Condition()
        self._waiting = 0
        self.begin(1)

    def begin(self, blocks: int) -> None:
        """Forget the last update."""
        self._blocks = blocks
        self._free = list(reversed(range(len(self._buffers))))  # so that the leftmost node, and the root, get buffer 0
        self._index: dict[Node, int] = {}
        self._present: set[Node] = set()
        self._turn = 0
        self.most = 0
        """Most buffers in use at once in this update."""

    async def take(self, turn: int, nodes: Sequence[Node]) -> dict[Node, NDArray[np.float64]]:
        """Buffers [N] for a member's nodes; members are served in the order of ``turn``, 0 first."""
        if self._turn != turn or len(self._free) < len(nodes):
            await self._wait(lambda: self._turn == turn and len(self._free) >= len(nodes))
        self._turn += 1
        for node in nodes:
            self._index[node] = self._free.pop()
        self.most = max(self.most, len(self._index))
        await self._tell()
        return {node: self._value(node) for node in nodes}

    async def put(self, nodes: Sequence[Node]) -> None:
        """A member's nodes are whole: merge what can be merged."""
        for node in nodes:
            self._present.add(node)
            while (pair := self._siblings(node)) is not None:
                left, right = pair
                self._present -= {left, right}
                await self._add(self._value(left), self._value(right))
                self._free.append(self._index.pop(right))
                node = (left[0], right[1])
                self._index[node] = self._index.pop(left)
                self._present.add(node)
        await self._tell()

    @property
    def held(self) -> list[tuple[int, int, int]]:
        """(lo, hi, buffer) of what is there, left to right."""
        return sorted((lo, hi, self._index[lo, hi]) for lo, hi in self._present)

    def _value(self, node: Node) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self._buffers[self._index[node]][: self._size]
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
        self._waiting += 1
        try:
            async with self._changed:
                await self._changed.wait_for(ready)
        finally:
            self._waiting -= 1

    async def _tell(self) -> None:
        if self._waiting:
            async with self._changed:
                self._changed.notify_all()


def _sum_into(left: NDArray[np.float64], right: NDArray[np.float64]) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found at the root
        np.add(left, right, out=left)
