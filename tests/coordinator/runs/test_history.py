"""Epochs as sums and as means."""

import numpy as np
import pytest

from phalanx_coordinator.runs.history import History
from phalanx_proto.experiment import Dense, ModelSpec, OptimizerSpec, ProgramSpec

SPEC = ProgramSpec(
    model=ModelSpec(layers=(Dense(inputs=2, outputs=3),)), loss="cross_entropy", float_targets=False,
    optimizer=OptimizerSpec(), dtype="float64", block=4, score_block=8,
)  # fmt: skip


@pytest.mark.parametrize("validation", [None, [float("inf"), 2.0, 1.0]])
def test_a_history_is_the_same_to_the_bit_after_its_sums_were_kept(validation: list[float] | None) -> None:
    history = History(SPEC)
    history.add([{"epoch": n, "train": [0.1 * n, 3.0, 2.0], "validation": validation} for n in range(4)])
    again = History(SPEC)
    again.restore(np.array(history.sums()))
    assert again.records == history.records and len(again.records) == 4
    assert again.sums().tobytes() == history.sums().tobytes()
    again.add([{"epoch": 4, "train": [1.0, 3.0, 2.0], "validation": validation}])
    assert again.records[4].epoch == 4 and again.records[4].train.loss == 1.0 / 3.0


def test_no_epochs_are_kept_as_none() -> None:
    history = History(SPEC)
    history.restore(History(SPEC).sums())
    assert history.records == []
