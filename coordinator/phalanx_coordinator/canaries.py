"""Which numeric class a run is in: every member shows what it makes of the first block, before the first update."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator.plan import Plan
from phalanx_coordinator.remote import RemoteWorker
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


async def classify(
    plan: Plan,
    own: Sequence[Mapping[str, Any]],
    remote: Mapping[str, str],
    workers: Mapping[str, RemoteWorker],
    canonical_node: NDArray[np.float64],
) -> NumericClass:
    """``bitwise`` if every canary is the canonical one; else every other one must be within the tolerance.

    ``own`` are the canaries of the pool's slots, the canonical one first; ``remote`` the digests of remote members;
    ``canonical_node`` [N] the values behind the canonical digest. Raises AdmissionRefused with a table.
    """
    canonical = own[0]["digest"]
    off = {
        owner.name: float(canary["deviation"])
        for owner, canary in zip(plan.placement.owners, own, strict=True)
        if owner is not None and canary["digest"] != canonical
    }
    for name, digest in remote.items():
        if digest != canonical:
            off[name] = await _deviation(plan, workers[name], canonical_node.copy())
    return judge(off, limit=TOLERANCE[plan.placement.dtype], strict=plan.request.reproducible == "bitwise")


def judge(off: Mapping[str, float], *, limit: float, strict: bool) -> NumericClass:
    """The class of a run from the relative deviations of those members that computed other bits."""
    refused = [
        {
            "worker": name,
            "field": "canary",
            "wanted": "the same bits" if strict else f"within {limit}",
            "found": f"{far:.3g} off",
        }
        for name, far in off.items()
        if strict or not far <= limit
    ]
    if refused:
        raise AdmissionRefused(refused)
    notes = tuple(f"{name} computes other bits ({far:.3g} relative): the result is not bitwise" for name, far in off.items())
    return NumericClass(level="tolerance" if off else "bitwise", notes=notes)


async def _deviation(plan: Plan, worker: RemoteWorker, reference: NDArray[np.float64]) -> float:
    """How far a remote member's canary node is from the canonical one, relative to its largest value."""
    rows, node = np.array(plan.canary_rows(), np.int32), np.empty_like(reference)
    await worker.ask(0, 0, 1, rows, plan.request.initial.astype(plan.placement.dtype))
    await worker.collect(0, wire.NodeReader([(0, 1)], {(0, 1): node}))
    return float(np.abs(node - reference).max() / (np.abs(reference).max() or 1.0))
