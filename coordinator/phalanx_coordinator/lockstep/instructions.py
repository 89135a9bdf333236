"""What goes into the lockstep of a group and what comes out of it: frozen values without behaviour."""

from dataclasses import dataclass

from phalanx_proto.errors import PhalanxError, WorkerLost
from phalanx_proto.jobs import EventKind

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
    incarnation: int = 1


@dataclass(frozen=True, kw_only=True)
class Part:
    """Let the coordinator's own slots compute: one range a local member."""

    update: int
    ranges: tuple[tuple[str, Range], ...]
    attempt: int = 0
    """0 is the plan's own part; each further one of the same update adds what lost members owed."""


@dataclass(frozen=True, kw_only=True)
class Drop:
    """Forget the nodes that just came: they do not count."""

    member: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Tell:
    """A change of the group, for the history of the job."""

    kind: EventKind
    member: str
    update: int
    reason: str = ""


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


Instruction = Send | Part | Drop | Tell | Commit | Finish | Abort


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
    incarnation: int | None = None
    """Which life of it has ended; None stands for the present one."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A member that was lost, or absent from the beginning, is ready to compute."""

    member: str
    incarnation: int


Event = Replied | Committed | Lost | Joined
