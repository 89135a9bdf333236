"""The fixed reduction tree (DESIGN §3.4): sums that do not depend on who computed what.

A tree over ``n`` blocks: node [lo, hi) = node [lo, mid) + node [mid, hi) with mid = (lo + hi) // 2, added in Float64.
A node's value is a Float64 vector. Whoever owns a range of blocks returns the maximal nodes inside it; the rest of the
tree is added by ``Accumulator``, in whatever order they arrive, to the same bits.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from phalanx_proto.errors import InvalidRequest, LedgerMismatch

Node = tuple[int, int]
Vector = NDArray[np.float64]


@lru_cache(maxsize=4096)
def maximal_nodes(lo: int, hi: int, n: int) -> tuple[Node, ...]:
    """The largest nodes of the tree over ``n`` blocks that lie inside [lo, hi), left to right; none if it is empty."""
    _check_range(lo, hi, n)
    return tuple(_maximal(lo, hi, 0, n)) if lo < hi else ()


def _check_range(lo: int, hi: int, n: int) -> None:
    if n < 1 or not 0 <= lo <= hi <= n:
        raise InvalidRequest(f"blocks {lo} to {hi} are not a range of {n} blocks")


def _maximal(lo: int, hi: int, a: int, b: int) -> Iterator[Node]:
    if lo <= a and b <= hi:
        yield a, b
    elif lo < b and a < hi:
        mid = (a + b) // 2
        yield from _maximal(lo, hi, a, mid)
        yield from _maximal(lo, hi, mid, b)


@lru_cache(maxsize=64)
def merge_schedule(lo: int, hi: int, n: int) -> NDArray[np.int32]:
    """int32[hi - lo], read-only: how many additions follow leaf ``lo + k`` when the leaves of [lo, hi) come in order.

    Each addition joins the two newest pending nodes; what is pending at the end is ``maximal_nodes(lo, hi, n)``.
    """
    merges = np.zeros(hi - lo if hi > lo else 0, np.int32)
    a, b = np.array(maximal_nodes(lo, hi, n), np.int64).reshape(-1, 2).T
    while len(a):
        inner = b - a > 1
        a, b = a[inner], b[inner]
        merges[b - 1 - lo] += 1  # right ends of one level are all different
        mid = (a + b) // 2
        a, b = np.concatenate([a, mid]), np.concatenate([mid, b])
    merges.setflags(write=False)
    return merges


def stack_depth(n: int) -> int:
    """The most nodes pending at once, for any range of the tree over ``n`` or fewer blocks, in order from the left.

    Counted after each leaf's additions: the places of a stack where the newest leaf stays outside until they are done.
    A loop that pushes the leaf first needs one place more. The worst range starts one block late: floor(log2(n // 2))
    nodes are left over from the first half, and the second half holds one node a level.
    """
    if n < 1:
        raise InvalidRequest(f"a tree over {n} blocks has no nodes")
    left, right = n // 2, n - n // 2
    return max(1, max(1, left.bit_length() - 1) + (right - 1).bit_length())


def combine(nodes: Mapping[Node, Vector], lo: int, hi: int, out: Vector | None = None) -> Vector:
    """The value of node [lo, hi) from itself or the finer nodes of the tree below it, which are left alone.

    A node that is there already is returned as it is, not a copy; a sum goes to ``out`` where that is given, which must
    not be one of the nodes. ``LedgerMismatch`` names the first block that is missing.
    """
    found = nodes.get((lo, hi))
    if found is not None:
        return found
    if hi - lo <= 1:
        raise LedgerMismatch(f"no node covers block {lo}", missing=((lo, hi),))
    mid = (lo + hi) // 2
    left, right = combine(nodes, lo, mid, out), combine(nodes, mid, hi)
    if out is None:
        out = next((value for value, node in ((left, (lo, mid)), (right, (mid, hi))) if node not in nodes), None)
    return _add(left, right, out)


def _add(left: Vector, right: Vector, out: Vector | None) -> Vector:
    # An overflow or a NaN is found and named by whoever checks the root, before it is used.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.add(left, right, out=out)


def fold(nodes: Mapping[Node, Vector], n: int) -> Vector:
    """The root of the tree over ``n`` blocks, in memory of its own, from nodes that cover it exactly once.

    Raises ``LedgerMismatch`` with the ``missing`` ranges and the ``extra`` nodes, which are no nodes of the tree or
    covered already, and where the values are not all Float64 of one size.
    """
    extra: list[Node] = []
    used: list[Node] = []
    for node in sorted(nodes, key=lambda node: (node[0], -node[1])):
        covered = used[-1][1] if used else 0
        (used if node[0] >= covered and is_node(*node, n) else extra).append(node)
    missing = tuple(gaps(used, n))
    if missing or extra:
        text = f"the nodes do not add up to {n} blocks: missing {_spell(missing)}; extra {_spell(extra)}"
        raise LedgerMismatch(text, missing=missing, extra=tuple(extra))
    kinds = sorted({f"{value.dtype}{list(value.shape)}" for value in nodes.values()})
    if len(kinds) > 1 or not kinds[0].startswith("float64"):
        raise LedgerMismatch(f"nodes are float64 of one size, not {', '.join(kinds)}")
    return combine(nodes, 0, n).copy() if (0, n) in nodes else combine(nodes, 0, n)


def is_node(lo: int, hi: int, n: int) -> bool:
    """Whether [lo, hi) is a node of the tree over ``n`` blocks."""
    return 0 <= lo < hi <= n and maximal_nodes(lo, hi, n) == ((lo, hi),)


def gaps(ranges: Sequence[Node], n: int) -> Iterator[Node]:
    """What sorted, disjoint ``ranges`` leave out of [0, n), left to right."""
    cursor = 0
    for lo, hi in (*ranges, (n, n)):
        if cursor < lo:
            yield cursor, lo
        cursor = max(cursor, hi)


def _spell(ranges: Sequence[Node]) -> str:
    listed = ", ".join(f"[{lo}, {hi})" for lo, hi in ranges[:8])
    return (listed or "none") + (f" and {len(ranges) - 8} more" if len(ranges) > 8 else "")


class Accumulator:
    """The tree over ``n`` blocks, filled node by node in any order; siblings are added as soon as both are there.

    In-order arrival holds at most ceil(log2 n) nodes (at least one). Values given to ``add`` belong to the accumulator,
    which may write into them.
    """

    def __init__(self, n: int) -> None:
        _check_range(0, n, n)
        self.n = n
        self._held: dict[Node, Vector] = {}
        self._order: list[Node] = []

    @property
    def live(self) -> int:
        """Vectors held now."""
        return len(self._order)

    @property
    def complete(self) -> bool:
        """Whether the root is there."""
        return self._order == [(0, self.n)]

    def add(self, lo: int, hi: int, value: Vector) -> None:
        """Take the value of node [lo, hi), Float64 [size]; ``LedgerMismatch`` if it is no node, or is there already."""
        node = (lo, hi)
        ancestors = self._ancestors(node)
        self._check(node, value)
        for parent in reversed(ancestors):
            sibling = (parent[0], lo) if lo > parent[0] else (hi, parent[1])
            if sibling not in self._held:
                break
            pair = (self._pop(sibling), value) if sibling[0] < lo else (value, self._pop(sibling))
            value = _add(*pair, next((part for part in pair if part.flags.writeable), None))
            node = lo, hi = parent
        self._held[node] = value
        insort(self._order, node)

    def root(self) -> Vector:
        """The sum over all blocks; ``LedgerMismatch`` naming the missing blocks if it is not complete."""
        if not self.complete:
            missing = self.missing()
            raise LedgerMismatch(f"blocks {_spell(missing)} of {self.n} are missing", missing=missing)
        return self._held[0, self.n]

    def missing(self) -> tuple[Node, ...]:
        """The ranges of blocks that no node has covered yet, left to right."""
        return tuple(gaps(self._order, self.n))

    def _ancestors(self, node: Node) -> list[Node]:
        """The nodes above ``node``, from the root down."""
        lo, hi = node
        a, b = 0, self.n
        path: list[Node] = []
        while a <= lo < hi <= b and (a, b) != node:
            path.append((a, b))
            mid = (a + b) // 2
            a, b = (a, mid) if hi <= mid else (mid, b)
        if (a, b) != node:
            raise LedgerMismatch(f"blocks {_spell([node])} are no node of a tree over {self.n}", extra=(node,))
        return path

    def _check(self, node: Node, value: Vector) -> None:
        at = bisect_left(self._order, node)
        before, after = self._order[at - 1 : at], self._order[at : at + 1]
        if (before and before[0][1] > node[0]) or (after and after[0][0] < node[1]):
            raise LedgerMismatch(f"blocks {_spell([node])} were added already, at least in part", extra=(node,))
        if value.dtype != np.float64 or value.ndim != 1:
            raise LedgerMismatch(f"blocks {_spell([node])} came as {value.dtype}{list(value.shape)}, not as float64[size]")
        if self._order and value.shape != (wanted := self._held[self._order[0]].shape):
            raise LedgerMismatch(f"blocks {_spell([node])} came with {len(value)} values, the others with {wanted[0]}")

    def _pop(self, node: Node) -> Vector:
        del self._order[bisect_left(self._order, node)]
        return self._held.pop(node)


@lru_cache(maxsize=65536)
def parent(node: Node, n: int) -> Node | None:
    """The tree node that ``node`` is a child of; None for the root. ``InvalidRequest`` if it is no node."""
    a, b = 0, n
    above: Node | None = None
    while (a, b) != node:
        if not a <= node[0] < node[1] <= b:
            raise InvalidRequest(f"{_spell([node])} is no node of a tree over {n} blocks")
        above, mid = (a, b), (a + b) // 2
        a, b = (a, mid) if node[1] <= mid else (mid, b)
    return above
