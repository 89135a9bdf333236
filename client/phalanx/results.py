"""What comes back: a fitted model, an evaluation, a simulation. Frozen, with summaries for people."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from phalanx_proto import result
from phalanx_proto.errors import InvalidRequest
from phalanx_proto.experiment import Role, Rows
from phalanx_proto.jobs import (
    EpochRecord,
    FitOutcome,
    FitSeconds,
    FittedParts,
    Level,
    MemberReport,
    Score,
    SimulationOutcome,
    SimulationSeconds,
)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Mean loss and accuracy over rows of one role; each row was counted once."""

    role: Role
    rows: int
    loss: float
    accuracy: float | None
    """None for float targets."""

    def summary(self) -> str:
        """One line."""
        return f"{self.role}: {describe(Score(loss=self.loss, rows=self.rows, accuracy=self.accuracy))}"


class CanonicalEngine(Protocol):
    """What evaluates and predicts: here, or where the model was fitted."""

    def evaluate(self, fitted: FittedParts, rows: Rows) -> Score:
        """Loss and accuracy over rows."""

    def predict(self, fitted: FittedParts, x: NDArray[np.float64]) -> NDArray[Any]:
        """Outputs [rows, O]."""


def _embedded() -> CanonicalEngine:
    from phalanx.embedded import EMBEDDED

    return EMBEDDED


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model. ``digest`` names its parameters bit by bit."""

    outcome: FitOutcome
    engine: CanonicalEngine | None = None
    """Where it evaluates and predicts; None is this machine."""

    @property
    def digest(self) -> str:
        """SHA-256 of the parameters' dtype, shape and exact bytes."""
        return self.outcome.digest

    @property
    def level(self) -> Level:
        """``bitwise`` if every member computed the canonical bits, else ``tolerance``."""
        return self.outcome.level

    @property
    def parameters(self) -> NDArray[Any]:
        """Flat [P] in the group dtype: weights row-major, then bias, layer after layer."""
        return self.outcome.fitted.parameters.copy()

    @property
    def train(self) -> Evaluation:
        """Score of the final parameters on the training rows."""
        return _evaluation("train", self.outcome.train)

    @property
    def validation(self) -> Evaluation | None:
        """Score of the final parameters on the validation rows."""
        return _evaluation("validation", self.outcome.validation)

    @property
    def test(self) -> Evaluation | None:
        """Score on the test rows that ``fit`` was given."""
        return _evaluation("test", self.outcome.test)

    @property
    def history(self) -> tuple[EpochRecord, ...]:
        """One record an epoch."""
        return self.outcome.history

    @property
    def members(self) -> tuple[MemberReport, ...]:
        """Who took part, and with what."""
        return self.outcome.members

    @property
    def seconds(self) -> FitSeconds:
        """Where the time went."""
        return self.outcome.seconds

    @property
    def updates(self) -> int:
        """Committed updates."""
        return self.outcome.updates

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the result should know."""
        return self.outcome.notes

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Experiment, fingerprints, execution, versions and inventory."""
        return self.outcome.manifest

    def document(self) -> dict[str, Any]:
        """JSON values: what ``result.json`` of this fit holds."""
        return result.of_fit(self.outcome)

    def evaluate(self, rows: Rows | None) -> Evaluation:
        """Loss and accuracy over rows of any role, each counted once, on the canonical CPU engine.

        Raises ``InvalidRequest`` for rows of another width, or labels that the model does not know.
        """
        if rows is None:
            raise InvalidRequest("evaluate takes the rows of a partition, such as parts.test; this partition has none of them")
        if not isinstance(rows, Rows):
            raise InvalidRequest(
                "evaluate takes the rows of a partition, such as parts.test, or dataset.rows() for all of them, "
                f"not a {type(rows).__name__}"
            )
        score = (self.engine or _embedded()).evaluate(self.outcome.fitted, rows)
        return _evaluation(rows.role, score)

    def outputs(self, x: ArrayLike) -> NDArray[Any]:
        """Outputs [rows, O] in the group dtype, for features [rows, F] or one row [F]: class probabilities, or values.

        The loss ``logistic`` has one output a row: the probability of class 1. The bits of a row's outputs depend on the row
        and, on some processors, on its place among 1,024; never on the rows around it. Raises ``InvalidRequest``.
        """
        if isinstance(x, Rows):
            raise InvalidRequest("predict and outputs take features, such as parts.test.x, not rows with their targets")
        try:
            features = np.asarray(x, np.float64)
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"the features are not an array of numbers: {error}") from error
        features = features[None, :] if features.ndim == 1 else features
        return (self.engine or _embedded()).predict(self.outcome.fitted, features)

    def predict(self, x: ArrayLike) -> NDArray[Any]:
        """Labels int32 [rows] for features [rows, F]; for float targets the values [rows, O]."""
        outputs, spec = self.outputs(x), self.outcome.fitted.spec
        if spec.float_targets:
            return outputs
        if spec.loss == "logistic":
            return np.asarray(outputs[:, 0] > 0.5, np.int32)
        return np.asarray(outputs.argmax(axis=1), np.int32)

    def summary(self) -> str:
        """A few lines: digest, scores, members, time."""
        outcome = self.outcome
        lines = [
            f"digest      {outcome.digest}",
            f"level       {outcome.level}, {outcome.fitted.spec.dtype}, {outcome.updates} updates",
            f"train       {describe(outcome.train)}",
        ]
        if outcome.validation is not None:
            best = "" if outcome.best_epoch is None else f" (best epoch {outcome.best_epoch})"
            lines.append(f"validation  {describe(outcome.validation)}{best}")
        if outcome.test is not None:
            lines.append(f"test        {describe(outcome.test)}")
        lines += [f"member      {describe_member(member)}" for member in outcome.members]
        lines.append(f"seconds     {describe_seconds(outcome.seconds)}")
        return "\n".join([*lines, *(f"note        {note}" for note in outcome.notes)])

    def __repr__(self) -> str:
        outcome = self.outcome
        return (
            f"Fitted(digest={outcome.digest[:12]}…, level={outcome.level}, updates={outcome.updates}, "
            f"members=[{', '.join(member.name for member in outcome.members)}], train=({describe(outcome.train)}))"
        )


@dataclass(frozen=True, eq=False)
class Simulation:
    """A finished Monte Carlo estimate of pi."""

    outcome: SimulationOutcome

    @property
    def hits(self) -> int:
        """Points inside the quarter circle: an exact integer, the same wherever it was counted."""
        return self.outcome.hits

    @property
    def samples(self) -> int:
        """Points drawn."""
        return self.outcome.samples

    @property
    def estimate(self) -> float:
        """4 x hits / samples."""
        return 4 * self.outcome.hits / self.outcome.samples

    @property
    def standard_error(self) -> float:
        """Binomial standard error of the estimate."""
        p = self.outcome.hits / self.outcome.samples
        return float(4 * np.sqrt(p * (1 - p) / self.outcome.samples))

    @property
    def members(self) -> tuple[MemberReport, ...]:
        """Who took part, and with what."""
        return self.outcome.members

    @property
    def seconds(self) -> SimulationSeconds:
        """Where the time went."""
        return self.outcome.seconds

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the result should know."""
        return self.outcome.notes

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Experiment, execution, versions and inventory."""
        return self.outcome.manifest

    def document(self) -> dict[str, Any]:
        """JSON values: what ``result.json`` of this simulation holds."""
        return result.of_simulation(self.outcome)

    def summary(self) -> str:
        """A few lines: estimate, hits, members, time."""
        lines = [
            f"estimate    {self.estimate:.9f} ± {self.standard_error:.1e}",
            f"hits        {self.hits:,} of {self.samples:,} samples",
            *(f"member      {describe_member(member)}" for member in self.members),
            f"seconds     {describe_seconds(self.seconds)}",
        ]
        return "\n".join([*lines, *(f"note        {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return f"Simulation(estimate={self.estimate!r}, hits={self.hits}, samples={self.samples})"


@overload
def _evaluation(role: Role, score: Score) -> Evaluation: ...
@overload
def _evaluation(role: Role, score: None) -> None: ...
def _evaluation(role: Role, score: Score | None) -> Evaluation | None:
    if score is None:
        return None
    return Evaluation(role=role, rows=score.rows, loss=score.loss, accuracy=score.accuracy)


def describe(score: Score) -> str:
    """A score in words."""
    accuracy = "" if score.accuracy is None else f"accuracy {score.accuracy:.4f}, "
    return f"{accuracy}loss {score.loss:.6f}, {score.rows:,} rows"


def describe_member(member: MemberReport) -> str:
    """A member's part in words."""
    if member.samples is not None:
        work = f"{member.samples:,} samples"
    else:
        work = f"{member.rows or 0:,} rows in {member.updates or 0:,} updates"
    lost = f", lost {member.losses} time{'' if member.losses == 1 else 's'}" if member.losses else ""
    place = ", ".join(filter(None, (member.backend, member.device)))  # one that was never there has named no device
    return f"{member.name} ({place}): {work}{lost}"


def describe_seconds(seconds: FitSeconds | SimulationSeconds) -> str:
    """Where the time went, in words."""
    return ", ".join(f"{name} {value:.3f}" for name, value in asdict(seconds).items() if value is not None)
