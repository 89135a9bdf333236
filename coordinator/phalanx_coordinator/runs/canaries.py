"""Which numeric class a run is in: every member shows what it makes of the first block, before the first update."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.runs.plan import Plan
from phalanx_proto import wire
from phalanx_proto.errors import AdmissionRefused
from phalanx_proto.jobs import Level

TOLERANCE: Mapping[str, float] = {"float32": 1e-4, "float64": 1e-10}
"""How far a member's canary may be from the canonical one, relative to its largest value, in the ``tolerance`` level."""


@dataclass(frozen=True, kw_only=True)
class NumericClass:
    """What the canaries say of a run."""

    level: Level
    notes: tuple[str, ...] = ()


def own_deviations(plan: Plan, own: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How far local members are off that compute other bits than the canonical engine, whose canary is the first."""
    return {
        owner.name: float(canary["deviation"])
        for owner, canary in zip(plan.placement.owners, own, strict=True)
        if owner is not None and canary["digest"] != own[0]["digest"]
    }


def judgement(plan: Plan, off: Mapping[str, float]) -> NumericClass:
    """``bitwise`` if nobody is off; else everybody must be within the tolerance. Raises AdmissionRefused with a table."""
    return judge(off, limit=TOLERANCE[plan.placement.dtype], strict=plan.request.reproducible == "bitwise")


def judge(off: Mapping[str, float], *, limit: float, strict: bool) -> NumericClass:
    """The class of a run from the relative deviations of those members that computed other bits."""
    rows = [_row(name, far, limit, strict) for name, far in off.items() if strict or not far <= limit]
    if rows:
        raise AdmissionRefused(rows)
    notes = tuple(f"{name} computes other bits ({far:.3g} relative): the result is not bitwise" for name, far in off.items())
    return NumericClass(level="tolerance" if off else "bitwise", notes=notes)


def _row(name: str, far: float, limit: float, strict: bool) -> dict[str, str]:
    wanted = "the same bits" if strict else f"within {limit}"
    return {"worker": name, "field": "canary", "wanted": wanted, "found": f"{far:.3g} off"}


async def deviation(plan: Plan, worker: RemoteWorker, canonical_node: NDArray[np.float64]) -> float:
    """How far a remote member's canary node is from the canonical one [N], relative to its largest value."""
    reference = canonical_node.copy()
    rows, node = np.array(plan.canary_rows(), np.int32), np.empty_like(reference)
    await worker.ask(0, 0, 1, rows, plan.request.initial.astype(plan.placement.dtype))
    await worker.collect(0, wire.NodeReader([(0, 1)], {(0, 1): node}))
    return float(np.abs(node - reference).max() / (np.abs(reference).max() or 1.0))
