"""Deadlines in one ordered table, and the deadline of the next update from measured ones."""

import pytest

from phalanx_coordinator.members.timing import UNDER_WAY, Backoff, Deadlines, UpdatePace, silence_allowed
from phalanx_proto.errors import InvalidRequest


def test_the_table_as_it_stands_is_in_order() -> None:
    table = Deadlines()
    assert table.rpc < table.heartbeat < table.update < table.lease


@pytest.mark.parametrize(
    ("changed", "lower", "higher"),
    [
        ({"rpc": 6.0}, "rpc", "heartbeat"),
        ({"heartbeat": 20.0}, "heartbeat", "update"),
        ({"update": 61.0}, "update", "lease"),
        ({"lease": 5.0}, "update", "lease"),
        ({"rpc": 0.0}, "rpc", "heartbeat"),
        ({"rpc": -1.0}, "rpc", "heartbeat"),
        ({"heartbeat": float("nan")}, "rpc", "heartbeat"),
    ],
)
def test_a_table_out_of_order_is_refused_and_both_are_named(changed: dict[str, float], lower: str, higher: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"{lower} \(.*\) is not below {higher} \("):
        Deadlines(**changed)  # type: ignore[arg-type]


def test_the_first_update_may_compile() -> None:
    assert UpdatePace(Deadlines()).deadline == Deadlines().opening


def test_short_updates_get_the_least_time() -> None:
    pace = UpdatePace(Deadlines())
    pace.took(0.001)
    assert pace.deadline == Deadlines().update


def test_long_updates_get_a_multiple_of_the_slowest() -> None:
    pace = UpdatePace(Deadlines())
    pace.took(5.0)
    assert pace.deadline == pytest.approx(100.0)
    pace.took(1.0)
    assert pace.deadline == pytest.approx(90.0)


def test_a_slow_update_is_forgotten_in_time() -> None:
    pace = UpdatePace(Deadlines())
    pace.took(50.0)
    for _ in range(100):
        pace.took(0.01)
    assert pace.deadline == Deadlines().update


def test_attempts_are_further_and_further_apart_and_bounded() -> None:
    backoff = Backoff(first=0.5, factor=2.0, longest=3.0, attempts=5)
    assert [backoff.wait(tried) for tried in range(6)] == [0.5, 1.0, 2.0, 3.0, 3.0, None]
    assert Backoff(attempts=0).wait(0) is None


def test_a_far_worker_may_be_silent_for_as_long_as_what_is_under_way_needs() -> None:
    assert silence_allowed(4.0, 0) == 4.0
    assert silence_allowed(4.0, 100_000) == 5.5
    assert silence_allowed(4.0, 10**9) == silence_allowed(4.0, UNDER_WAY) < 40.0
