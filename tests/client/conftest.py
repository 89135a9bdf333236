"""Results as the coordinator gives them, without one."""

from collections.abc import Callable

import numpy as np
import pytest

from phalanx.results import Fitted, Simulation
from phalanx_proto.experiment import Dense, ModelSpec, OptimizerSpec, ProgramSpec
from phalanx_proto.jobs import (
    EpochRecord,
    FitOutcome,
    FitSeconds,
    FittedParts,
    MemberReport,
    Score,
    SimulationOutcome,
    SimulationSeconds,
)

MakeFitted = Callable[..., Fitted]
MakeSimulation = Callable[..., Simulation]


@pytest.fixture
def make_fitted() -> MakeFitted:
    """A fit of three epochs by two members; digest and test score may be given."""

    def make(digest: str = "ab" * 32, test: Score | None = None) -> Fitted:
        spec = ProgramSpec(
            model=ModelSpec(layers=(Dense(inputs=2, outputs=3),)), loss="cross_entropy", float_targets=False,
            optimizer=OptimizerSpec(), dtype="float32", block=2, score_block=4,
        )  # fmt: skip
        parts = FittedParts(spec=spec, programs={}, parameters=np.arange(9, dtype=np.float32), scaling=None, source="s")
        train, validation = Score(loss=0.5, rows=6, accuracy=0.75), Score(loss=0.25, rows=2, accuracy=1.0)
        history = tuple(EpochRecord(epoch=epoch, train=train, validation=validation) for epoch in range(3))
        members = (
            MemberReport(
                name="local-1", backend="cpu", device="cpu", rows=12, updates=3, compute_seconds=0.5, resident=1 << 20
            ),
            MemberReport(name="far", backend="cuda", device="H200", rows=6, updates=3),
        )
        return Fitted(
            FitOutcome(
                fitted=parts, digest=digest, level="bitwise", updates=3, history=history, train=train, validation=validation,
                test=test, best_epoch=1, members=members, notes=("more slots than CPUs",), manifest={},
                seconds=FitSeconds(setup=1.0, updates=2.0, validation=0.5, total=4.0),
            )
        )  # fmt: skip

    return make


@pytest.fixture
def make_simulation() -> MakeSimulation:
    """A simulation by one member; hits may be given."""

    def make(hits: int = 785_856) -> Simulation:
        member = MemberReport(name="local-1", backend="cpu", device="cpu", samples=1_000_000)
        seconds = SimulationSeconds(setup=1.0, work=0.25, total=1.25)
        return Simulation(
            SimulationOutcome(samples=1_000_000, hits=hits, members=(member,), seconds=seconds, notes=(), manifest={})
        )

    return make
