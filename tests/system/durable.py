"""A run that a test may kill: ``python -m tests.system.durable JOB [GROUP]`` fits, or goes on with what was begun."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import phalanx
from phalanx.embedded import EMBEDDED
from phalanx_coordinator.checkpoints.checkpoint import Checkpoint
from phalanx_coordinator.checkpoints.store import CheckpointStore
from phalanx_proto.execution import Execution
from phalanx_proto.jobs import FitOutcome, FitRequest, Progress, SimulationOutcome, SimulationRequest
from tests.system.groups import classifier

PARTS = phalanx.datasets.synthetic(100, 8, 3, seed=1).partition(validation=0.2, test=0.2, seed=4)
LONG = 3_000
"""Epochs of three updates each: seconds of work, in which to be killed."""


def fit_request(**changed: Any) -> FitRequest:
    """Nine updates in three epochs, of which the best is kept."""
    model = classifier()
    sound = FitRequest(
        model=model.network.spec, initial=model.network.parameters, loss=model.loss, optimizer=model.optimizer_spec(0.3),
        standardize=True, float_targets=False, train=PARTS.train, validation=PARTS.validation, test=PARTS.test, epochs=3,
        batch=25, block=4, seed=3, shuffle=True, keep_best=True, execution=phalanx.local(workers=1), reproducible="bitwise",
    )  # fmt: skip
    return dataclasses.replace(sound, **changed)


def silent(progress: Progress) -> None:
    """Nobody listens."""


def fit(request: FitRequest, output: Path | None = None, resume: Checkpoint | None = None) -> FitOutcome:
    """In this process."""
    return EMBEDDED.run(lambda coordinator: coordinator.fit(request, silent, output, resume=resume))


def simulate(request: SimulationRequest, output: Path | None = None, resume: Checkpoint | None = None) -> SimulationOutcome:
    """In this process."""
    return EMBEDDED.run(lambda coordinator: coordinator.simulate(request, silent, output, resume=resume))


def newest(output: Path) -> Checkpoint | None:
    """What a job's directory has to go on from."""
    return CheckpointStore(output / "checkpoints").newest()


def long_request(execution: Execution) -> FitRequest:
    """A fit that a test may kill at leisure."""
    return fit_request(epochs=LONG, checkpoint_every=100, execution=execution)


def main() -> None:
    job = Path(sys.argv[1])
    execution: Execution = phalanx.cluster(sys.argv[2]) if len(sys.argv) > 2 else phalanx.local(workers=1)
    if job.exists():
        phalanx.resume(job, execution)
    else:
        fit(long_request(execution), job)


if __name__ == "__main__":
    main()
