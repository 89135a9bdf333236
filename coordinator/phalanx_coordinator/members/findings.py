"""What the doctor found out about one machine, and whether it could join. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members.admission import Row
from phalanx_coordinator.members.link import Link
from phalanx_proto.errors import PhalanxError
from phalanx_proto.experiment import DType
from phalanx_proto.handshake import Handshake


@dataclass(frozen=True, kw_only=True)
class StrayWorker:
    """One left-over worker of this user on a machine."""

    pid: int
    kind: str
    processes: int
    """It and all below it."""
    started: float
    """Unix time."""
    stopped: bool


@dataclass(frozen=True, kw_only=True)
class StrayReport:
    """The left-over workers of one machine."""

    strays: tuple[StrayWorker, ...] = ()
    removed: tuple[int, ...] = ()
    """Process numbers of those that were ended."""
    directories: int = 0
    """Private directories that killed workers left; those that were removed now are counted too."""
    directories_removed: int = 0
    reason: str = ""
    """Why nobody looked; empty where somebody did. Public."""

    @property
    def left(self) -> tuple[StrayWorker, ...]:
        """Those that are still there."""
        return tuple(stray for stray in self.strays if stray.pid not in self.removed)

    @property
    def clean(self) -> bool:
        """Whether nothing is left."""
        return not self.left and self.directories == self.directories_removed


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One machine of the group."""

    record: WorkerRecord
    failure: PhalanxError | None = None
    """What kept its worker from being ready, or from answering; its details may say which ``failure`` that was."""
    handshake: Handshake | None = None
    refusals: tuple[Row, ...] = ()
    """What of the handshake keeps it out."""
    notes: tuple[str, ...] = ()
    route: str = ""
    """How its calls get there: socket, forward or relay; empty where none did."""
    link: Link | None = None
    """None where it was not measured; a local member's calls take no way."""
    link_failure: str = ""
    """Why it could not be measured. Public."""
    strays: StrayReport = StrayReport(reason="it was not reached")

    @property
    def can_join(self) -> bool:
        """Whether a run could start with it. Strays keep nobody out."""
        return self.failure is None and self.handshake is not None and not self.refusals

    @property
    def failure_kind(self) -> str:
        """The kind of the failure; empty where there is none, or where it has no name."""
        return "" if self.failure is None else str(self.failure.details.get("failure", ""))


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What every machine is compared with: the coordinator's own."""

    phalanx: str
    python: str
    jax: str
    jaxlib: str
    source: str
    dtype: DType


@dataclass(frozen=True, kw_only=True)
class Examination:
    """The whole group."""

    expected: Expected
    findings: tuple[Finding, ...]
    """In the order of the file."""
    problems: Sequence[str] = ()
    """What keeps the group out as a whole: more slots on this machine than it has."""
    notes: Sequence[str] = ()
    steps: Mapping[str, str] = field(default_factory=dict)
    """By worker: the one next step of each that cannot join. Private."""

    @property
    def can_join(self) -> bool:
        """Whether a run of the whole group could start."""
        return not self.problems and all(finding.can_join for finding in self.findings)
