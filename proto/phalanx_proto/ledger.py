"""What was done of an update, exactly once, block by block; ``chunks`` is the same for a simulation. Pure, no clock, no I/O.

What is late, repeated or from an earlier life of a member is dropped and counted; what contradicts the plan raises
``LedgerMismatch``, for then a peer computes something else than what it was asked.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from phalanx_proto.blocks import Range, block_count, merge_ranges, rows_in
from phalanx_proto.errors import InvalidRequest, LedgerMismatch
from phalanx_proto.reduction import gaps

Reason = Literal["unknown member", "lost member", "other incarnation", "late", "other update", "duplicate"]


@dataclass(frozen=True, kw_only=True)
class Share:
    """Blocks [lo, hi) of an update, asked of one incarnation of a member."""

    member: str
    incarnation: int
    lo: int
    hi: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One update's blocks and who computes them; the shares cover each block once (empty ones are legal)."""

    run: str
    update: int
    rows: int
    """Rows of this update's batch."""
    block: int
    """Rows of a block."""
    shares: tuple[Share, ...]

    @property
    def blocks(self) -> int:
        """Blocks of the update."""
        return block_count(self.rows, self.block)

    def __post_init__(self) -> None:
        ranges = sorted((share.lo, share.hi) for share in self.shares if share.lo != share.hi)
        ends = [0, *(hi for _, hi in ranges)]
        if [lo for lo, _ in ranges] + [self.blocks] != ends:
            raise InvalidRequest(f"the shares {ranges} do not cover the {self.blocks} blocks of update {self.update} once")


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """Blocks [lo, hi) of ``member`` that now count, with their real rows."""

    member: str
    lo: int
    hi: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A reply that does not count, and why."""

    reason: Reason


class Ledger:
    """The blocks of one update. A member may answer with its range whole or in parts (nodes), in any order."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.dropped: Counter[Reason] = Counter()
        """Replies that did not count, by reason."""
        self.rows: Counter[str] = Counter()
        """Accepted rows by member."""
        self._incarnation = {share.member: share.incarnation for share in plan.shares}
        self._asked: dict[str, list[Range]] = {share.member: [] for share in plan.shares}
        for share in plan.shares:
            self._asked[share.member].append((share.lo, share.hi))
        self._lost: set[str] = set()
        self._done: list[Range] = []
        self._by: dict[Range, str] = {}
        self._left = plan.blocks

    @property
    def complete(self) -> bool:
        """Whether every block is accounted."""
        return self._left == 0

    def missing(self) -> tuple[Range, ...]:
        """Ranges of blocks that have not been accepted, left to right."""
        return tuple(gaps(self._done, self.plan.blocks))

    def owing(self) -> tuple[str, ...]:
        """Members that still owe blocks, in the order in which they were asked first."""
        missing = self.missing()
        return tuple(member for member, asked in self._asked.items() if _common(missing, asked))

    def owner_of(self, block: int) -> str | None:
        """Whose sums of the block count; None where none do yet."""
        return next((member for (lo, hi), member in self._by.items() if lo <= block < hi), None)

    def accept(
        self, member: str, incarnation: int, update: int, lo: int, hi: int, rows: int, weight: float
    ) -> Accepted | Dropped:
        """Account blocks [lo, hi) with their real rows and their weight sum (one for each real row).

        A member without blocks in this update has nothing to account.

        Raises ``LedgerMismatch`` naming member, update and blocks where these were not asked of the member, or where
        rows or weight are not the plan's.
        """
        reason = self._reason(member, incarnation, update, lo, hi)
        if reason is not None:
            self.dropped[reason] += 1
            return Dropped(reason=reason)
        if not any(a <= lo < hi <= b for a, b in self._asked[member]) or self._overlaps(lo, hi):
            raise self._mismatch(member, lo, hi, f"were not asked of it; it was asked for {self._asked[member]}")
        wanted = rows_in(lo, hi, self.plan.block, self.plan.rows)
        if rows != wanted or weight != wanted:
            raise self._mismatch(member, lo, hi, f"hold {wanted} rows, but came with {rows} rows and weight {weight}")
        insort(self._done, (lo, hi))
        self._by[lo, hi] = member
        self._left -= hi - lo
        self.rows[member] += rows
        return Accepted(member=member, lo=lo, hi=hi, rows=rows)

    def lose(self, member: str) -> tuple[Range, ...]:
        """Forget a lost member; what it still owed, left to right, is to be ``assign``-ed to others."""
        asked = self._asked.pop(member, [])
        self._incarnation.pop(member, None)
        self._lost.add(member)
        return merge_ranges(_common(self.missing(), sorted(asked)))

    def assign(self, share: Share) -> None:
        """Ask blocks that a lost member owed of another; ``InvalidRequest`` if someone else owes or did them."""
        owed = [(lo, hi) for ranges in self._asked.values() for lo, hi in ranges if lo < hi] + self._done
        inside = 0 <= share.lo < share.hi <= self.plan.blocks
        if not inside or any(lo < share.hi and share.lo < hi for lo, hi in owed):
            raise InvalidRequest(f"blocks [{share.lo}, {share.hi}) of update {self.plan.update} are not free")
        if self._incarnation.setdefault(share.member, share.incarnation) != share.incarnation:
            raise InvalidRequest(f"{share.member} has incarnation {self._incarnation[share.member]} in this update")
        self._asked.setdefault(share.member, []).append((share.lo, share.hi))

    def _reason(self, member: str, incarnation: int, update: int, lo: int, hi: int) -> Reason | None:
        if update != self.plan.update:
            return "late" if update < self.plan.update else "other update"
        if member not in self._incarnation:
            return "lost member" if member in self._lost else "unknown member"
        if incarnation != self._incarnation[member]:
            return "other incarnation"
        at = bisect_left(self._done, (lo, hi))
        return "duplicate" if self._done[at : at + 1] == [(lo, hi)] else None

    def _overlaps(self, lo: int, hi: int) -> bool:
        at = bisect_left(self._done, (lo, hi))
        return any(a < hi and lo < b for a, b in self._done[max(at - 1, 0) : at + 1])

    def _mismatch(self, member: str, lo: int, hi: int, what: str) -> LedgerMismatch:
        text = f"{member}: update {self.plan.update}: blocks [{lo}, {hi}) {what}"
        return LedgerMismatch(text, run=self.plan.run, member=member, update=self.plan.update, blocks=[lo, hi])


def _common(some: Sequence[Range], others: Sequence[Range]) -> tuple[Range, ...]:
    """What lies in both; in the order of the first, then of the second."""
    return tuple((max(lo, a), min(hi, b)) for lo, hi in some for a, b in others if max(lo, a) < min(hi, b))


def shares_of(ranges: Sequence[Range], members: Sequence[tuple[str, int]]) -> tuple[Share, ...]:
    """One share a member, (name, incarnation), from ranges in the same order (see ``blocks.share_blocks``)."""
    return tuple(
        Share(member=name, incarnation=incarnation, lo=lo, hi=hi)
        for (lo, hi), (name, incarnation) in zip(ranges, members, strict=True)
    )
