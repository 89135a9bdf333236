"""What each member does while a job runs: its state, its share and how soon it answers; for the status alone. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx_coordinator.members.membership import Standing
from phalanx_coordinator.members.placement import Placement
from phalanx_proto.chunks import ChunkLedger
from phalanx_proto.jobs import MemberStatus, Progress

NEW = 0.1
"""Weight of the newest answer in a member's latency."""
_STATES = {"there": "computing", "lost": "lost", "refused": "refused"}


class MemberWatch:
    """Is told of answers, and asked for statuses."""

    def __init__(self, placement: Placement, standings: Mapping[str, Standing]) -> None:
        self._placement, self._standings = placement, standings
        self._latency: dict[str, float] = {}
        self._tallied: dict[str, tuple[int, int]] = {}

    def answered(self, member: str, seconds: float) -> None:
        """A member has answered a request after so many seconds."""
        before = self._latency.get(member, seconds)
        self._latency[member] = before + NEW * (seconds - before)

    def tallied(self, tallies: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Rows by member, from the tallies of the pool's slots; what they computed since the last time is their latency."""
        rows: dict[str, int] = {}
        slowest: dict[str, float] = {}
        for slot, (owner, tally) in enumerate(zip(self._placement.owners, tallies, strict=True)):
            if owner is None:
                continue
            rows[owner.name] = rows.get(owner.name, 0) + int(tally["rows"])
            computed, updates = self._tallied.get(str(slot), (0, 0))
            if tally["updates"] > updates:
                seconds = (tally["compute"] - computed) / (tally["updates"] - updates) / 1e9
                slowest[owner.name] = max(slowest.get(owner.name, 0.0), seconds)
            self._tallied[str(slot)] = (int(tally["compute"]), int(tally["updates"]))
        for name, seconds in slowest.items():
            self._latency[name] = seconds
        return rows

    def counted(self, ledger: ChunkLedger, total: int, member: str, nanoseconds: int) -> Progress:
        """The progress of a simulation, after a member has counted a chunk in so many nanoseconds."""
        self.answered(member, nanoseconds / 1e9)
        members = self.statuses(ledger.by_member)
        return Progress(phase="samples", done=ledger.samples, total=total, unit="samples", members=members)

    def statuses(self, rows: Mapping[str, int]) -> tuple[MemberStatus, ...]:
        """Every member, in their order; ``rows`` are the rows, or samples, that were accepted of each, where that is known."""
        return tuple(self._status(record.name, rows.get(record.name)) for record in self._placement.members)

    def _status(self, name: str, rows: int | None) -> MemberStatus:
        standing = self._standings.get(name)
        if standing is None or standing.state == "there":
            return MemberStatus(name=name, state="computing", rows=rows, latency=self._latency.get(name))
        state = "rejoining" if standing.state == "lost" and standing.tried else _STATES[standing.state]
        return MemberStatus(name=name, state=state, rows=rows, reason=standing.reason or None)
