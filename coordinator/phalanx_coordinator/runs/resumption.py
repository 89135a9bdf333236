"""Whether a run may go on from a checkpoint, and what it can promise then. Pure."""

import json
from dataclasses import dataclass

from phalanx_coordinator.checkpoints.checkpoint import Checkpoint, Kind, Origin
from phalanx_coordinator.runs.plan import Plan
from phalanx_proto import tensors
from phalanx_proto.errors import CheckpointRefused
from phalanx_proto.experiment import DType
from phalanx_proto.jobs import Level, Reproducible, SimulationRequest
from phalanx_worker.inventory import Inventory


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a checkpoint must be for a run to go on from it."""

    kind: Kind
    experiment: str
    dtype: DType | None
    """None where it decides nothing."""
    origin: Origin
    reproducible: Reproducible = "any"

    @classmethod
    def by_fit(cls, plan: Plan, machine: Inventory) -> "Wanted":
        """What a fit on this machine can go on from."""
        return cls(
            kind="fit", experiment=plan.experiment.digest, dtype=plan.placement.dtype, origin=Origin.here(machine),
            reproducible=plan.request.reproducible,
        )  # fmt: skip

    @classmethod
    def by_simulation(cls, request: SimulationRequest, machine: Inventory) -> "Wanted":
        """What a simulation can go on from."""
        return cls(kind="simulation", experiment=experiment_digest(request), dtype=None, origin=Origin.here(machine))


def experiment_digest(request: SimulationRequest) -> str:
    """SHA-256 that names what a simulation computes, wherever it does."""
    experiment = {"estimate": "pi", "samples": request.samples, "seed": request.seed}
    return tensors.digest_bytes(json.dumps(experiment, sort_keys=True).encode())


@dataclass(frozen=True, eq=False, kw_only=True)
class Resumption:
    """Where a run begins."""

    checkpoint: Checkpoint | None
    """None begins at the beginning."""
    level: Level
    """The most that the run can still promise."""
    notes: tuple[str, ...]

    @property
    def update(self) -> int:
        """The update that the run begins with; of a simulation, the samples that are counted."""
        return 0 if self.checkpoint is None else self.checkpoint.update


NOTHING = Resumption(checkpoint=None, level="bitwise", notes=())
"""The beginning."""


def resume_from(checkpoint: Checkpoint, wanted: Wanted) -> Resumption:
    """Compare the two; raises ``CheckpointRefused`` with what differs and what to do."""
    where = f"the checkpoint of update {checkpoint.update}"
    if (checkpoint.kind, checkpoint.experiment) != (wanted.kind, wanted.experiment):
        raise _refused(
            f"{where} belongs to another experiment: resume it with the request that it was made for, or begin anew in "
            "another directory", "experiment", wanted.experiment, checkpoint.experiment,
        )  # fmt: skip
    if wanted.dtype is not None and checkpoint.dtype != wanted.dtype:
        raise _refused(
            f"{where} is in {checkpoint.dtype}, and this execution computes in {wanted.dtype}: resume it on one of "
            f"{checkpoint.dtype}", "dtype", wanted.dtype, checkpoint.dtype,
        )  # fmt: skip
    _require_same_software(where, checkpoint.origin, wanted.origin)
    level, notes = _promise(where, checkpoint, wanted)
    notes = (*checkpoint.notes, f"resumed after update {checkpoint.update}, from a checkpoint", *notes)
    return Resumption(checkpoint=checkpoint, level=level, notes=notes)


def _require_same_software(where: str, found: Origin, here: Origin) -> None:
    for name in ("jax", "jaxlib"):
        wrote, have = found.versions.get(name), here.versions.get(name)
        if wrote != have:
            raise _refused(
                f"{where} was computed with {name} {wrote}, here is {have}: install {name}=={wrote} and resume again, or begin "
                "anew in another directory", "versions", have, wrote,
            )  # fmt: skip
    if found.source != here.source:
        raise _refused(
            f"{where} was computed by other numeric sources (Phalanx {found.versions.get('phalanx')}, fingerprint "
            f"{found.source[:12]}; here {here.versions.get('phalanx')}, {here.source[:12]}): install those and resume again, "
            "or begin anew in another directory", "source", here.source, found.source,
        )  # fmt: skip


def _promise(where: str, checkpoint: Checkpoint, wanted: Wanted) -> tuple[Level, tuple[str, ...]]:
    """The level, and why it is no higher; exact integers are the same everywhere."""
    if checkpoint.kind == "simulation":
        return checkpoint.level, ()
    strict = wanted.reproducible == "bitwise"
    if checkpoint.level == "tolerance" and strict:
        raise _refused(
            f"{where} was computed within a tolerance, and bitwise was asked for: resume it with reproducible 'any', or begin "
            "anew in another directory", "level", "bitwise", "tolerance",
        )  # fmt: skip
    found, here = checkpoint.origin.numeric, wanted.origin.numeric
    other = [
        f"{name}: {found.get(name)}, here {here.get(name)}"
        for name in sorted({*found, *here})
        if found.get(name) != here.get(name)
    ]
    if not other:
        return checkpoint.level, ()
    text = f"{where} was computed by a canonical engine of another numeric class ({'; '.join(other)})"
    if strict:
        raise _refused(
            f"{text}: resume it on a machine of the class that wrote it, or with reproducible 'any', which then promises a "
            "tolerance", "numeric class", dict(here), dict(found),
        )  # fmt: skip
    return "tolerance", (f"{text}: the result is not bitwise",)


def _refused(text: str, field: str, wanted: object, found: object) -> CheckpointRefused:
    return CheckpointRefused(text, field=field, wanted=wanted, found=found)
