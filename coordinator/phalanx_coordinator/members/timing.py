"""All deadlines in one ordered table. Pure: the clock is an argument."""

from dataclasses import dataclass
from itertools import pairwise

from phalanx_proto.errors import InvalidRequest


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """How a lost member is brought back: bounded attempts, further and further apart; all in seconds."""

    first: float = 0.5
    factor: float = 2.0
    longest: float = 60.0
    attempts: int = 10
    """Of one outage; with these waits, some four minutes and what the attempts themselves take."""
    settled: float = 60.0
    """A member that has been back for so long has all its attempts again."""

    def wait(self, tried: int) -> float | None:
        """Before the next attempt, after so many; None where there is none left."""
        if tried >= self.attempts:
            return None
        return min(self.first * self.factor**tried, self.longest)


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds; rpc < heartbeat < update < lease is checked when the table is made."""

    rpc: float = 3.0
    """A small call that must be answered at once."""
    heartbeat: float = 4.0
    """The longest silence of a worker that is taken for life; it beats every second."""
    update: float = 20.0
    """The least time an update is given, however short the ones before were."""
    lease: float = 60.0
    """What a worker lives without hearing from its coordinator."""
    start: float = 120.0
    """From starting a worker to its ready line."""
    stragglers: float = 5.0
    """At least so long after the last ready member the others are waited for, where the run can go on without them."""
    daemons: float = 15.0
    """The same, as long as only engines of this machine are ready."""
    opening: float = 300.0
    """Inspecting, compiling and binding a run; also the first update, which may compile."""
    rejoin: Backoff = Backoff()
    """How a lost member is brought back, where the run goes on without it."""

    def __post_init__(self) -> None:
        table = [("rpc", self.rpc), ("heartbeat", self.heartbeat), ("update", self.update), ("lease", self.lease)]
        for (name, value), (later, limit) in pairwise(table):
            if not 0 < value < limit:
                raise InvalidRequest(f"deadlines must grow: {name} ({value} s) is not below {later} ({limit} s)")


UNDER_WAY = 2 << 20
"""Bytes that a far worker may have under way to us; a channel of ssh holds as many."""
SLOWEST_LINK = 100_000
"""Bytes a second that the link to a far worker must carry."""


def silence_allowed(usual: float, owed: int) -> float:
    """Seconds for which a far worker may be silent while it owes us ``owed`` bytes: its beats wait behind those under way."""
    return usual + 1.5 * min(owed, UNDER_WAY) / SLOWEST_LINK


class UpdatePace:
    """The deadline of the next update, from those that were measured."""

    FACTOR = 20.0
    """How many times the slowest of the last updates the next one may take."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._slowest = 0.0

    def took(self, seconds: float) -> None:
        """One update took this long; older ones weigh less and less."""
        self._slowest = max(seconds, self._slowest * 0.9)

    @property
    def deadline(self) -> float:
        """Seconds for the next update."""
        if not self._slowest:
            return self._deadlines.opening
        return max(self._deadlines.update, self.FACTOR * self._slowest)
