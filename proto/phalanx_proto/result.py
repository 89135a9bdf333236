"""The document of a finished job: ``result.json``, and what ``--json`` prints. Public values only; null is what is N/A."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx_proto.jobs import FitOutcome, MemberReport, Score, Seconds, SimulationOutcome

_OF_EVERY_MEMBER = ("name", "backend", "device", "compute_seconds", "resident")


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
        "seconds": _seconds(outcome.seconds, "updates"),
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
        "seconds": _seconds(outcome.seconds, "work"),
        "notes": list(outcome.notes),
    }


def to_text(document: Mapping[str, Any]) -> str:
    """The one way a document is written; raises ValueError for a value that is not finite."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _score(score: Score | None) -> dict[str, Any] | None:
    return None if score is None else {"loss": score.loss, "accuracy": score.accuracy, "rows": score.rows}


def _members(members: Sequence[MemberReport], *work: str) -> list[dict[str, Any]]:
    return [{name: getattr(member, name) for name in (*_OF_EVERY_MEMBER, *work)} for member in members]


def _seconds(seconds: Seconds, work: str) -> dict[str, Any]:
    found: dict[str, Any] = {"setup": seconds.setup, work: seconds.work, "total": seconds.total}
    if work == "updates":
        found["validation"] = seconds.validation
    return {name: None if value is None else round(value, 6) for name, value in found.items()}
