"""The lockstep of a group, as a pure state machine: events in, instructions out. It knows no clock, socket or array.

An update is planned, its shares are sent, replies are accepted once each, and only when every block is accounted for is
it committed. The coordinator's own slots are part of the plan as ``Part``; the canonical engine vouches for them when it
commits. A partial sum never becomes an update.

A lost member ends the run with a named failure (``on_loss="abort"``), or the others are asked for what it still owed in
this update, and the next one is planned without it (``"rebalance"``). It is planned in again from the first plan that is
made after it joined. Who computed a block leaves no trace in the sums, so neither changes a bit of the result.
"""

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from phalanx_coordinator.lockstep.instructions import (
    Abort,
    Commit,
    Committed,
    Drop,
    Event,
    Finish,
    Instruction,
    Joined,
    Lost,
    Member,
    Part,
    Range,
    Replied,
    Send,
    Tell,
)
from phalanx_proto import blocks
from phalanx_proto.errors import PhalanxError, WorkerLost
from phalanx_proto.jobs import OnLoss
from phalanx_proto.ledger import Dropped, Ledger, Plan, Share, shares_of
from phalanx_proto.schedule import Schedule

Shares = tuple[tuple[Member, Range], ...]


@dataclass(kw_only=True)
class Lockstep:
    """The state of one run."""

    run: str
    members: Sequence[Member]
    schedule: Schedule
    on_loss: OnLoss = "abort"
    absent: Collection[str] = ()
    """Members that are not there at the beginning."""
    update: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Replies that were not counted, by reason."""
    accepted: dict[str, list[int]] = field(default_factory=dict)
    """[rows, updates] of each remote member."""
    attempt: int = 0
    """How often blocks of the update under way were given to others."""

    def __post_init__(self) -> None:
        self._ledger: Ledger | None = None
        self._known = {member.name: member for member in self.members}
        self._there = [member.name for member in self.members if member.name not in self.absent]
        self._joining: set[str] = set()
        self._plans: dict[int, Shares] = {}
        self._last_loss = WorkerLost("no member was there at the beginning")
        self._ended = False
        self._committing = False
        self._counted: set[str] = set()  # those whose part in the update under way is counted
        self.accepted = {member.name: [0, 0] for member in self.members if not member.local}

    def shares(self, update: int) -> Shares:
        """Who computes which blocks of an update, in the members' order; made once, from who is there at that moment."""
        if update not in self._plans:
            self._admit_joining()
            present = [self._known[name] for name in self._there]
            ranges = blocks.share_blocks(self.schedule.blocks_of(update), [member.weight for member in present], update)
            self._plans = {number: plan for number, plan in self._plans.items() if number >= self.update}
            self._plans[update] = tuple(zip(present, ranges, strict=True))
        return self._plans[update]

    def ahead(self) -> Part | None:
        """The own part of the next update, for slots that would only wait while this one is committed."""
        following = self.update + 1
        if following >= self.schedule.updates or not (self._there or self._joining):
            return None
        return self._part(following)

    def owing(self) -> tuple[str, ...]:
        """Members that still owe blocks of the update under way."""
        return () if self._ledger is None else self._ledger.owing()

    def owner_of(self, block: int) -> str | None:
        """Whose sums of a block of the update under way count."""
        return None if self._ledger is None else self._ledger.owner_of(block)

    def begin(self) -> list[Instruction]:
        """The instructions of the next update, or the end."""
        if self.update >= self.schedule.updates:
            self._ended = True
            return [Finish()]
        if self.update not in self._plans and not (self._there or self._joining):
            return self._nobody_left()
        shares = self.shares(self.update)
        self._ledger = Ledger(
            Plan(
                run=self.run, update=self.update, rows=self.schedule.rows_of(self.update), block=self.schedule.block,
                shares=shares_of([span for _, span in shares], [(member.name, member.incarnation) for member, _ in shares]),
            )
        )  # fmt: skip
        self._committing, self.attempt, self._counted = False, 0, set()
        gone = [member.name for member, _ in shares if not self._is_there(member)]
        found: list[Instruction] = [
            self._send(member, span) for member, span in shares
            if not member.local and span[0] < span[1] and self._is_there(member)
        ]  # fmt: skip
        part = self._part(self.update)
        found += [] if part is None else [part]
        for member, span in shares:
            if member.local:
                self._vouch(member, span)
        return found + self._hand_over(gone) + self._commit_if_complete()  # those who were lost after this was planned

    def handle(self, event: Event) -> list[Instruction]:
        """The only door that changes state."""
        if self._ended:
            return []
        try:
            return self._follow(event)
        except PhalanxError as error:
            return self._abort(error)

    def _follow(self, event: Event) -> list[Instruction]:
        match event:
            case Lost():
                return self._lose(event)
            case Joined():
                return self._join(event)
            case Committed():
                self.update = event.update + 1
                return self.begin()
            case Replied():
                return self._accept(event) or self._commit_if_complete()

    def _is_there(self, member: Member) -> bool:
        """Whether this life of the member goes on."""
        return member.name in self._there and self._known[member.name].incarnation == member.incarnation

    def _send(self, member: Member, span: Range) -> Send:
        return Send(member=member.name, update=self.update, lo=span[0], hi=span[1], incarnation=member.incarnation)

    def _part(self, update: int) -> Part | None:
        ranges = tuple((member.name, span) for member, span in self.shares(update) if member.local)
        return Part(update=update, ranges=ranges) if any(lo < hi for _, (lo, hi) in ranges) else None

    def _vouch(self, member: Member, span: Range) -> None:
        """Count what the own slots were told to compute."""
        lo, hi = span
        if lo < hi:
            rows = blocks.rows_in(lo, hi, self.schedule.block, self.schedule.rows_of(self.update))
            self._accept(Replied(
                member=member.name, incarnation=member.incarnation, update=self.update, lo=lo, hi=hi, rows=rows, weight=rows,
            ))  # fmt: skip

    def _accept(self, event: Replied) -> list[Instruction]:
        assert self._ledger is not None
        outcome = self._ledger.accept(
            event.member, event.incarnation, event.update, event.lo, event.hi, event.rows, event.weight
        )
        if isinstance(outcome, Dropped):
            self.dropped[outcome.reason] += 1
            return [Drop(member=event.member, reason=outcome.reason)]
        if event.member in self.accepted:
            self.accepted[event.member][0] += outcome.rows
            self.accepted[event.member][1] += event.member not in self._counted
            self._counted.add(event.member)
        return []

    def _lose(self, event: Lost) -> list[Instruction]:
        member = self._known.get(event.member)
        if member is None or event.incarnation not in (None, member.incarnation):
            return []
        if self.on_loss == "abort":
            return self._abort(event.error)
        if event.member not in (*self._there, *self._joining):
            return []
        self._there = [name for name in self._there if name != event.member]
        self._joining.discard(event.member)
        self._last_loss = event.error
        told = Tell(kind="lost", member=event.member, update=self.update, reason=event.error.message)
        if self._ledger is None or self._committing:
            return [told]
        following = self._hand_over([event.member])
        work = [found for found in following if not isinstance(found, Tell)]  # first, since it is waited for
        return [*work, told, *(found for found in following if isinstance(found, Tell)), *self._commit_if_complete()]

    def _hand_over(self, names: Sequence[str]) -> list[Instruction]:
        """Ask others for what lost members still owe in this update."""
        assert self._ledger is not None
        owed_by = {name: self._ledger.lose(name) for name in names}  # all, before one of them is asked in its next life
        owed = blocks.merge_ranges(sorted(span for spans in owed_by.values() for span in spans))
        if not owed:
            return []
        if not self._there:
            self._admit_joining()
        if not self._there:
            return self._nobody_left()
        heirs = [self._known[heir] for heir in self._there]
        pieces = blocks.share_ranges(owed, [heir.weight for heir in heirs], self.update)
        own: list[dict[str, Range]] = []
        found: list[Instruction] = []
        for index, span in pieces:
            heir = heirs[index]
            self._ledger.assign(Share(member=heir.name, incarnation=heir.incarnation, lo=span[0], hi=span[1]))
            if heir.local:
                self._vouch(heir, span)
                _place(own, heir.name, span)
            else:
                found.append(self._send(heir, span))
        self.attempt += 1
        found += [Part(update=self.update, ranges=tuple(ranges.items()), attempt=self.attempt) for ranges in own]
        to_whom = ", ".join(dict.fromkeys(heirs[index].name for index, _ in pieces))
        for name, spans in owed_by.items():
            if spans:
                reason = f"{sum(hi - lo for lo, hi in spans)} of its blocks went to {to_whom}"
                found.append(Tell(kind="rebalanced", member=name, update=self.update, reason=reason))
        return found

    def _join(self, event: Joined) -> list[Instruction]:
        member = self._known.get(event.member)
        if member is None or (event.incarnation <= member.incarnation and event.member not in self.absent):
            return []
        found: list[Instruction] = []
        if event.member in self._there:  # nobody has noticed yet that its last life is over
            replaced = WorkerLost(f"worker {event.member} came back as another process", worker=event.member)
            found = self._lose(Lost(member=event.member, error=replaced))
        if not self._ended:
            self.absent = [name for name in self.absent if name != event.member]
            self._known[event.member] = dataclasses.replace(member, incarnation=event.incarnation)
            self._joining.add(event.member)
            found.append(Tell(kind="joined", member=event.member, update=self.update))
        return found

    def _admit_joining(self) -> None:
        """Those who joined are there from now on, each in its place."""
        if self._joining:
            present = {*self._there, *self._joining}
            self._there = [member.name for member in self.members if member.name in present]
            self._joining.clear()

    def _commit_if_complete(self) -> list[Instruction]:
        assert self._ledger is not None
        if self._ended or self._committing or not self._ledger.complete:
            return []
        self._committing = True
        return [Commit(update=self.update)]

    def _nobody_left(self) -> list[Instruction]:
        last = self._last_loss
        text = f"update {self.update}: no member is left to compute it; the last one: {last.message}"
        return self._abort(WorkerLost(text, **{**last.details, "update": self.update}))

    def _abort(self, error: PhalanxError) -> list[Instruction]:
        self._ended = True
        return [Abort(error=error)]


def _place(layers: list[dict[str, Range]], name: str, span: Range) -> None:
    """Put a range into the first layer that has none for this member: a part holds one range a member."""
    layer = next((layer for layer in layers if name not in layer), None)
    if layer is None:
        layers.append({name: span})
    else:
        layer[name] = span
