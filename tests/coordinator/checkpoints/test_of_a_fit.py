"""What the parts of a resumed fit add up to, and how the best epoch is kept."""

import dataclasses
import json
import math

import pytest

from phalanx_coordinator.checkpoints.of_a_fit import Earlier, best_of, together
from phalanx_proto.errors import CorruptData
from phalanx_proto.jobs import FitSeconds, MemberReport
from tests.coordinator.checkpoint_builders import checkpoint_of

NOW = (
    MemberReport(name="a", backend="cpu", device="cpu", rows=10, updates=2, compute_seconds=0.5),
    MemberReport(name="c", backend="cpu", device="cpu", rows=4, updates=1, compute_seconds=None, losses=1, incarnation=2),
)
BEFORE = (
    MemberReport(name="a", backend="cuda", device="another", rows=5, updates=1, compute_seconds=0.25),
    MemberReport(name="b", backend="cpu", device="cpu", rows=7, updates=3, compute_seconds=1.0, losses=2, incarnation=3),
    MemberReport(name="c", backend="cpu", device="cpu", rows=1, updates=1, compute_seconds=1.0, losses=1, incarnation=2),
)
SECONDS = FitSeconds(setup=1.0, updates=2.0, validation=None, total=4.0)


def test_members_of_one_name_are_one_and_nobody_is_forgotten() -> None:
    a, c, b = together(NOW, BEFORE)
    assert a == dataclasses.replace(NOW[0], rows=15, updates=3, compute_seconds=0.75)
    assert (c.rows, c.updates, c.compute_seconds, c.losses) == (5, 2, None, 2)
    assert b == BEFORE[1]


def test_parts_add_up_over_any_number_of_lives() -> None:
    earlier = Earlier.of(None)
    for _ in range(3):
        so_far = earlier.and_then(NOW, SECONDS)
        state = json.loads(json.dumps(so_far.state(None), allow_nan=False))
        earlier = Earlier.of(checkpoint_of(state=state))
        assert earlier == so_far
    assert [member.rows for member in earlier.members] == [30, 12]
    assert earlier.seconds == FitSeconds(setup=3.0, updates=6.0, validation=None, total=12.0)


@pytest.mark.parametrize("loss", [0.1, math.inf, math.nan, 5e-324])
def test_the_best_loss_is_kept_to_the_bit(loss: float) -> None:
    state = json.loads(json.dumps(Earlier.of(None).state({"loss": loss, "epoch": 3}), allow_nan=False))
    found = best_of(state["best"])
    assert found is not None and found["epoch"] == 3
    assert float(found["loss"]).hex() == loss.hex()
    assert best_of(None) is None


@pytest.mark.parametrize("state", [{}, {"members": [{"name": "a"}], "seconds": {}}, {"members": [], "seconds": {"hours": 1}}])
def test_a_state_that_is_none_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(CorruptData, match="the checkpoint of update 3 cannot be read"):
        Earlier.of(checkpoint_of(state=state))
