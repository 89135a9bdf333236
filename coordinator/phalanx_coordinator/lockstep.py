"""The lockstep of a group, as a pure state machine: events in, instructions out. It knows no clock, socket or array.

An update is planned, its shares are sent, replies are accepted once each, and only when every block is accounted for is
it committed. The coordinator's own slots are part of the plan as ``Part``; the canonical engine vouches for them when it
commits. Whoever is lost ends the run with a named failure; a partial sum never becomes an update.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx_proto import blocks
from phalanx_proto.errors import PhalanxError, WorkerLost
from phalanx_proto.ledger import Dropped, Ledger, Plan, shares_of
from phalanx_proto.schedule import Schedule

Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member of a group, in its fixed place."""

    name: str
    weight: float
    incarnation: int = 1
    local: bool = False
    """Whether it computes in the coordinator's own pool."""


@dataclass(frozen=True, kw_only=True)
class Send:
    """Ask a member for the nodes of blocks [lo, hi) of the update."""

    member: str
    update: int
    lo: int
    hi: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """Let the coordinator's own slots compute: one range a local member."""

    update: int
    ranges: tuple[tuple[str, Range], ...]


@dataclass(frozen=True, kw_only=True)
class Commit:
    """All nodes are there: fold them and commit the update."""

    update: int


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Every update is committed."""


@dataclass(frozen=True, kw_only=True)
class Abort:
    """The run ends here; parameters stay at the last committed update."""

    error: PhalanxError


Instruction = Send | Part | Commit | Finish | Abort


@dataclass(frozen=True, kw_only=True)
class Replied:
    """A member's nodes have come whole."""

    member: str
    incarnation: int
    update: int
    lo: int
    hi: int
    rows: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class Committed:
    """The canonical engine has committed the update."""

    update: int


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A member is gone."""

    member: str
    error: WorkerLost


Event = Replied | Committed | Lost


@dataclass(kw_only=True)
class Lockstep:
    """The state of one run."""

    run: str
    members: Sequence[Member]
    schedule: Schedule
    update: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Replies that were not counted, by reason."""
    accepted: dict[str, list[int]] = field(default_factory=dict)
    """[rows, updates] of each remote member."""

    def __post_init__(self) -> None:
        self._ledger: Ledger | None = None
        self._weights = [member.weight for member in self.members]
        self._shares: tuple[int, list[tuple[Member, Range]]] | None = None
        self._ended = False
        self._committing = False
        self.answered: set[str] = set()
        """Members that have answered the update under way."""
        self.accepted = {member.name: [0, 0] for member in self.members if not member.local}

    def shares(self, update: int) -> list[tuple[Member, Range]]:
        """Who computes which blocks of an update: a function of the update number alone."""
        if self._shares is None or self._shares[0] != update:
            ranges = blocks.share_blocks(self.schedule.blocks_of(update), self._weights, update)
            self._shares = (update, list(zip(self.members, ranges, strict=True)))
        return self._shares[1]

    def begin(self) -> list[Instruction]:
        """The instructions of the next update, or the end."""
        if self.update >= self.schedule.updates:
            self._ended = True
            return [Finish()]
        shares = self.shares(self.update)
        self._ledger = Ledger(
            Plan(
                run=self.run, update=self.update, rows=self.schedule.rows_of(self.update), block=self.schedule.block,
                shares=shares_of([span for _, span in shares], [(member.name, member.incarnation) for member, _ in shares]),
            )
        )  # fmt: skip
        self._committing = False
        self.answered = set()
        local = tuple((member.name, span) for member, span in shares if member.local)
        sends: list[Instruction] = [
            Send(member=member.name, update=self.update, lo=lo, hi=hi)
            for member, (lo, hi) in shares
            if not member.local and lo < hi
        ]
        if any(lo < hi for _, (lo, hi) in local):
            sends.append(Part(update=self.update, ranges=local))
            for member, (lo, hi) in shares:
                if member.local and lo < hi:
                    rows = blocks.rows_in(lo, hi, self.schedule.block, self.schedule.rows_of(self.update))
                    self._accept(Replied(
                        member=member.name, incarnation=member.incarnation, update=self.update, lo=lo, hi=hi, rows=rows,
                        weight=rows,
                    ))  # fmt: skip
        return sends + self._commit_if_complete()

    def handle(self, event: Event) -> list[Instruction]:
        """The only door that changes state."""
        if self._ended:
            return []
        match event:
            case Lost():
                return self._abort(event.error)
            case Committed():
                self.update = event.update + 1
                return self.begin()
            case Replied():
                try:
                    self._accept(event)
                except PhalanxError as error:
                    return self._abort(error)
                return self._commit_if_complete()

    def _accept(self, event: Replied) -> None:
        assert self._ledger is not None
        outcome = self._ledger.accept(
            event.member, event.incarnation, event.update, event.lo, event.hi, event.rows, event.weight
        )
        if isinstance(outcome, Dropped):
            self.dropped[outcome.reason] += 1
            return
        self.answered.add(event.member)
        if event.member in self.accepted:
            self.accepted[event.member][0] += outcome.rows
            self.accepted[event.member][1] += 1

    def _commit_if_complete(self) -> list[Instruction]:
        assert self._ledger is not None
        if self._committing or not self._ledger.complete:
            return []
        self._committing = True
        return [Commit(update=self.update)]

    def _abort(self, error: PhalanxError) -> list[Instruction]:
        self._ended = True
        return [Abort(error=error)]
