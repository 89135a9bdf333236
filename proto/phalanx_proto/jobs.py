"""What a client asks of a coordinator and what it gets back: frozen values, the same embedded or remote."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx_proto.execution import Execution
from phalanx_proto.experiment import Loss, ModelSpec, OptimizerSpec, ProgramSpec, Rows

Level = Literal["bitwise", "tolerance"]
Reproducible = Literal["any", "bitwise"]
OnLoss = Literal["abort", "rebalance"]


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """A fit as the client describes it; the coordinator checks all of it before anything starts."""

    model: ModelSpec
    initial: NDArray[np.float64]
    """Flat parameters [P]."""
    loss: Loss
    optimizer: OptimizerSpec
    standardize: bool
    float_targets: bool
    train: Rows
    validation: Rows | None
    test: Rows | None = None
    """Rows that are scored once, after the fit; they decide nothing."""
    epochs: int
    batch: int
    block: int | Literal["auto"]
    seed: int
    shuffle: bool
    keep_best: bool
    execution: Execution
    reproducible: Reproducible = "any"
    """"bitwise" refuses members whose canary differs from the canonical engine's."""
    on_loss: OnLoss = "abort"
    """"rebalance" lets the others do what a lost member owed, and lets it come back; no bit of the result changes."""
    checkpoint_every: int | None = None
    """Updates from one checkpoint to the next, where the job has a directory; None lets their cost decide."""


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """A Monte Carlo estimate of pi."""

    samples: int
    seed: int
    execution: Execution
    on_loss: OnLoss = "abort"
    """"rebalance" lets the others count what a lost member owed, and lets it come back."""
    checkpoint_every: int | None = None
    """Samples from one checkpoint to the next, where the job has a directory; None lets their cost decide."""


@dataclass(frozen=True, kw_only=True)
class MemberReport:
    """What one member did in the whole job."""

    name: str
    backend: str
    device: str
    rows: int | None = None
    """Rows accepted, of a fit."""
    updates: int | None = None
    """Updates it took part in, of a fit."""
    samples: int | None = None
    """Samples accepted, of a simulation."""
    compute_seconds: float | None = None
    resident: int | None = None
    """Resident memory in bytes at the last measurement; None where it was not measured."""
    numeric_class: str | None = None
    losses: int | None = None
    """How often it was lost; None for the coordinator's own engines, whose loss ends the run."""
    incarnation: int | None = None
    """Of the process that was started last; 1 unless it was lost or absent."""


@dataclass(frozen=True, kw_only=True)
class FitSeconds:
    """Where the time of a fit went."""

    setup: float
    updates: float
    """All updates, without validation."""
    validation: float | None
    """None without validation rows."""
    total: float


@dataclass(frozen=True, kw_only=True)
class SimulationSeconds:
    """Where the time of a simulation went."""

    setup: float
    work: float
    total: float


@dataclass(frozen=True, kw_only=True)
class Score:
    """Means over the rows of one role, each row counted once."""

    loss: float
    rows: int
    accuracy: float | None = None
    """None for float targets."""


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """One line of the history. The training score is the mean over the epoch's updates, as they came."""

    epoch: int
    train: Score
    validation: Score | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Scaling:
    """Standardization fitted on training rows: (x - mean) / scale, each Float64 [F]."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    def apply(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The scaled rows."""
        return (x - self.mean) / self.scale


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedParts:
    """All that evaluation and prediction need of a fitted model."""

    spec: ProgramSpec
    programs: Mapping[str, bytes]
    """The score and predict artifacts."""
    parameters: NDArray[Any]
    """[P] in the group dtype."""
    scaling: Scaling | None
    source: str
    """Fingerprint of the dataset whose training rows it was fitted on."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FitOutcome:
    """The result of a fit."""

    fitted: FittedParts
    digest: str
    level: Level
    updates: int
    history: tuple[EpochRecord, ...]
    train: Score
    validation: Score | None
    test: Score | None = None
    """None where no test rows were given."""
    best_epoch: int | None
    members: tuple[MemberReport, ...]
    seconds: FitSeconds
    notes: tuple[str, ...]
    manifest: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class SimulationOutcome:
    """The result of a simulation."""

    samples: int
    hits: int
    members: tuple[MemberReport, ...]
    seconds: SimulationSeconds
    notes: tuple[str, ...]
    manifest: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class MemberStatus:
    """One member of a job under way; None is what was not measured."""

    name: str
    state: str
    """``computing``, or what keeps it from that: ``starting``, ``lost``, ``rejoining``, ``refused``, or ``ended`` with
    the job."""
    rows: int | None = None
    """Rows (of a simulation: samples) accepted so far."""
    latency: float | None = None
    """Seconds from asking for its part of an update to the whole answer, in the last updates.

    Of a simulation: the seconds that its last chunks took to compute."""
    reason: str | None = None
    """Why it does not compute; public."""


SETTING_UP = ("starting", "opening")
"""Phases before the first update of an attempt; what is done then was done before."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Completed work at one moment."""

    phase: str
    done: int = 0
    total: int = 0
    unit: str = "updates"
    loss: float | None = None
    epoch: int | None = None
    validation_loss: float | None = None
    members: tuple[MemberStatus, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether work is under way, so that its pace can be told."""
        return self.total > 0 and self.phase not in SETTING_UP


Listener = Callable[[Progress], None]


def unwatched(progress: Progress) -> None:
    """The listener of those who show nobody how far it is."""


EventKind = Literal[
    "started", "admitted", "lost", "rebalanced", "rejoining", "joined", "refused", "checkpoint", "resumed", "complete",
    "failed", "cancelled",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Event:
    """One change in the history of a job."""

    time: float
    """Seconds since 1970, UTC."""
    kind: EventKind
    member: str | None = None
    """Whom it is about; None where it is about the whole job."""
    update: int | None = None
    """The update under way; None before the first one, and in a simulation."""
    reason: str = ""
    """Why, in words; public."""


EventListener = Callable[[Event], None]


def unheard(event: Event) -> None:
    """The listener of those who keep no history."""
