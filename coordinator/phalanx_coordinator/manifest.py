"""What a job says of itself on disk: the manifest before it starts, the result after it ends. Public values only."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from phalanx_coordinator.fit import Plan
from phalanx_coordinator.placement import Placement
from phalanx_proto.fingerprint import source_fingerprint
from phalanx_proto.handshake import PROTOCOL, Handshake
from phalanx_proto.jobs import FitOutcome, MemberReport, Score, Seconds, SimulationOutcome, SimulationRequest
from phalanx_proto.version import VERSION
from phalanx_worker.inventory import Inventory

FORMAT = 1
Outcome = TypeVar("Outcome", FitOutcome, SimulationOutcome)


def _common(kind: str, placement: Placement, machine: Inventory) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": kind,
        "versions": {"phalanx": VERSION, "protocol": PROTOCOL, **machine.platform.versions},
        "source": source_fingerprint(),
        "execution": {
            "kind": placement.kind,
            "dtype": placement.dtype,
            "oversubscribe": placement.oversubscribe,
            "members": [member.public() for member in placement.members],
        },
        "notes": list(placement.notes),
        "inventory": machine.to_dict(),
    }


def of_fit(plan: Plan, machine: Inventory) -> dict[str, Any]:
    """The manifest of a fit."""
    common = _common("fit", plan.placement, machine)
    experiment = json.loads(plan.experiment.to_json())
    request = plan.request
    data = {
        "train": {"fingerprint": request.train.fingerprint, "rows": len(request.train)},
        "source": request.train.source,
    }
    if request.validation is not None:
        data["validation"] = {"fingerprint": request.validation.fingerprint, "rows": len(request.validation)}
    return {**common, "experiment": experiment, "experiment_digest": plan.experiment.digest, "data": data}


def of_simulation(request: SimulationRequest, placement: Placement, machine: Inventory) -> dict[str, Any]:
    """The manifest of a simulation."""
    experiment = {"samples": request.samples, "seed": request.seed, "estimate": "pi"}
    return {**_common("simulation", placement, machine), "experiment": experiment}


def with_members(outcome: Outcome, described: Mapping[str, Any], handshakes: Mapping[str, Handshake]) -> Outcome:
    """The outcome with its manifest, which now also says who answered and with what."""
    answered = {
        name: {**dataclasses.asdict(handshake), "pid": None, "backends": [b.name for b in handshake.backends if b.devices]}
        for name, handshake in handshakes.items()
    }
    manifest = {**described, "handshakes": answered, "notes": list(outcome.notes)}
    if isinstance(outcome, FitOutcome):
        manifest["level"] = outcome.level
    return dataclasses.replace(outcome, manifest=manifest)


def _seconds(seconds: Seconds, work: str) -> dict[str, Any]:
    found: dict[str, Any] = {"setup": seconds.setup, work: seconds.work, "total": seconds.total}
    if work == "updates":
        found["validation"] = seconds.validation
    return {name: None if value is None else round(value, 6) for name, value in found.items()}


def score_document(score: Score | None) -> dict[str, Any] | None:
    """A score as JSON values."""
    return None if score is None else {"loss": score.loss, "accuracy": score.accuracy, "rows": score.rows}


def _member(member: MemberReport, *fields: str) -> dict[str, Any]:
    return {name: getattr(member, name) for name in fields}


def fit_result(outcome: FitOutcome) -> dict[str, Any]:
    """``result.json`` of a fit; ``test`` is filled in by whoever evaluates the test rows."""
    fields = ("name", "backend", "device", "rows", "updates", "compute_seconds", "resident")
    return {
        "kind": "fit",
        "digest": outcome.digest,
        "level": outcome.level,
        "updates": outcome.updates,
        "train": score_document(outcome.train),
        "validation": score_document(outcome.validation),
        "test": None,
        "best_epoch": outcome.best_epoch,
        "history": [
            {"epoch": line.epoch, "train": score_document(line.train), "validation": score_document(line.validation)}
            for line in outcome.history
        ],
        "members": [_member(member, *fields) for member in outcome.members],
        "seconds": _seconds(outcome.seconds, "updates"),
        "notes": list(outcome.notes),
    }


def simulation_result(outcome: SimulationOutcome) -> dict[str, Any]:
    """``result.json`` of a simulation."""
    fields = ("name", "backend", "device", "samples", "compute_seconds", "resident")
    return {
        "kind": "simulation",
        "samples": outcome.samples,
        "hits": outcome.hits,
        "estimate": 4 * outcome.hits / outcome.samples,
        "members": [_member(member, *fields) for member in outcome.members],
        "seconds": _seconds(outcome.seconds, "work"),
        "notes": list(outcome.notes),
    }
