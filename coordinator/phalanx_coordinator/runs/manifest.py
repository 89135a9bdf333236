"""What a job says of itself on disk: the manifest before it starts, with who answered when it ended. Public values only."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from phalanx_coordinator.members.placement import Placement
from phalanx_coordinator.runs.plan import Plan
from phalanx_proto.fingerprint import source_fingerprint
from phalanx_proto.handshake import PROTOCOL, Handshake
from phalanx_proto.jobs import FitOutcome, SimulationOutcome, SimulationRequest
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
    for rows in (request.validation, request.test):
        if rows is not None:
            data[rows.role] = {"fingerprint": rows.fingerprint, "rows": len(rows)}
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
