"""When a checkpoint is taken: ends of epochs that can be afforded, half a minute at most, or a number of updates."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from phalanx_coordinator.checkpoints.policy import CheckpointPolicy


def policy(**settings: int) -> CheckpointPolicy:
    found = CheckpointPolicy(**{"period": 10, "total": 1000, **settings})
    found.take(100.0, 0)
    return found


def test_the_first_end_of_an_epoch_is_taken_since_nobody_knows_what_it_costs() -> None:
    rule = policy()
    assert rule.stop(100.0, 0) == 10
    assert [update for update in range(25) if rule.due(100.0, update)] == [10, 20]


def test_what_it_cost_decides_how_many_epochs_pass() -> None:
    rule = policy()
    rule.take(101.0, 10)
    rule.cost = 0.05
    assert not rule.due(105.9, 20) and rule.stop(105.9, 20) == 1000
    assert rule.stop(106.1, 23) == 30
    assert not rule.due(106.1, 29) and rule.due(106.1, 30)


def test_after_half_a_minute_any_update_is_taken_whatever_it_costs() -> None:
    rule = policy(period=500)
    rule.take(101.0, 10)
    rule.cost = 20.0
    assert not rule.due(130.9, 11) and rule.due(131.0, 11)


def test_a_number_of_updates_is_kept_to_exactly() -> None:
    rule = policy(every=4)
    taken = []
    update = 0
    while update < 30:
        update = min(rule.stop(100.0, update), 30)
        if rule.due(100.0, update):
            rule.take(100.0, update)
            rule.cost = 1e9
            taken.append(update)
    assert taken == [4, 8, 12, 16, 20, 24, 28]


def test_there_is_none_at_the_end_nor_twice_of_one_update() -> None:
    rule = policy(every=1, total=3)
    rule.take(100.0, 2)
    assert not rule.due(200.0, 2) and not rule.due(200.0, 3) and rule.stop(200.0, 2) == 3
    assert not policy(total=10).due(1e9, 10)


def test_a_resumed_run_counts_from_where_it_begins() -> None:
    rule = policy()
    rule.take(100.0, 17)
    assert rule.stop(100.0, 17) == 20 and not rule.due(100.0, 17)
    assert not rule.due(100.0, 18) and rule.due(100.0, 20)


@given(
    cost=st.floats(0.001, 5.0), pace=st.floats(1e-4, 20.0), period=st.integers(1, 50), updates=st.integers(1, 400)
)  # fmt: skip
def test_checkpoints_stay_cheap_and_are_never_far_apart(cost: float, pace: float, period: int, updates: int) -> None:
    """Each update takes ``pace`` seconds: the gap is at least what the share allows, at most half a minute and one update."""
    rule = CheckpointPolicy(period=period, total=updates + 1)
    rule.take(0.0, 0)
    times = []
    for update in range(1, updates + 1):
        if rule.due(update * pace, update):
            times.append(update * pace)
            rule.take(update * pace, update)
            rule.cost = cost
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(gap >= min(cost / rule.share, rule.longest) * (1 - 1e-9) for gap in gaps)
    since = updates * pace - (times[-1] if times else 0.0)
    assert all(gap <= rule.longest + pace * (1 + 1e-9) for gap in [*gaps, since, *times[:1]])
