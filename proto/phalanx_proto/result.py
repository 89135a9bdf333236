"""The document of a finished job: ``result.json``, and what ``--json`` prints. Public values only; null is what is N/A."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx_proto.jobs import FitOutcome, FitSeconds, MemberReport, Score, SimulationOutcome, SimulationSeconds


def of(outcome: FitOutcome | SimulationOutcome) -> dict[str, Any]:
    """The result of either."""
    return of_fit(outcome) if isinstance(outcome, FitOutcome) else of_simulation(outcome)


def of_fit(outcome: FitOutcome) -> dict[str, Any]:
    """The result of a fit."""
    spec = outcome.fitted.spec
    return {
        "kind": "fit",
        "digest": outcome.digest,
        "level": outcome.level,
        "dtype": spec.dtype,
        "parameters": spec.model.parameters,
        "updates": outcome.updates,
        "train": _score(outcome.train),
        "validation": _score(outcome.validation),
        "test": _score(outcome.test),
        "best_epoch": outcome.best_epoch,
        "history": [
            {"epoch": line.epoch, "train": _score(line.train), "validation": _score(line.validation)}
            for line in outcome.history
        ],
        "members": _members(outcome.members, "rows", "updates"),
        "seconds": _seconds(outcome.seconds),
        "notes": list(outcome.notes),
    }


def of_simulation(outcome: SimulationOutcome) -> dict[str, Any]:
    """The result of a simulation."""
    return {
        "kind": "simulation",
        "samples": outcome.samples,
        "hits": outcome.hits,
        "estimate": 4 * outcome.hits / outcome.samples,
        "members": _members(outcome.members, "samples"),
        "seconds": _seconds(outcome.seconds),
        "notes": list(outcome.notes),
    }


def to_text(document: Mapping[str, Any]) -> str:
    """The one way a document is written; raises ValueError for a value that is not finite."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _score(score: Score | None) -> dict[str, Any] | None:
    return None if score is None else {"loss": finite(score.loss), "accuracy": score.accuracy, "rows": score.rows}


def finite(value: float | None) -> float | None:
    """A number that JSON can hold; None where it is none, such as the loss of rows on which a model overflows."""
    return value if value is not None and math.isfinite(value) else None


def _members(members: Sequence[MemberReport], *work: str) -> list[dict[str, Any]]:
    names = ("name", "backend", "device", *work, "compute_seconds", "resident", "losses", "incarnation")
    return [{name: getattr(member, name) for name in names} for member in members]


def _seconds(seconds: FitSeconds | SimulationSeconds) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 6) for name, value in dataclasses.asdict(seconds).items()}
