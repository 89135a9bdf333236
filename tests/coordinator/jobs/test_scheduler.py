"""Turns: first come, first served, within the slots, and whoever waits knows for what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx_coordinator.jobs.scheduler import MAX_WAITING, Scheduler, Start, Wait
from phalanx_proto.errors import Unavailable


def test_jobs_start_in_order_while_there_are_slots() -> None:
    queue = Scheduler(4)
    for job, slots in (("a", 2), ("b", 2), ("c", 1)):
        queue.submit(job, slots)
    assert queue.decide() == [
        Start(job="a"), Start(job="b"),
        Wait(job="c", reason="waits for 1 of 4 CPU slots, of which 0 are free (in use: a 2, b 2)"),
    ]  # fmt: skip
    queue.ended("a")
    assert queue.decide() == [Start(job="c")]
    assert queue.decide() == []


def test_a_small_job_does_not_overtake() -> None:
    queue = Scheduler(2)
    queue.adopt("running", 1)
    queue.submit("large", 2)
    queue.submit("small", 1)
    assert queue.decide() == [
        Wait(job="large", reason="waits for 2 of 2 CPU slots, of which 1 are free (in use: running 1)"),
        Wait(job="small", reason="waits for its turn after large"),
    ]
    queue.ended("running")
    assert queue.decide()[0] == Start(job="large")


def test_a_job_that_leaves_the_queue_is_not_started() -> None:
    queue = Scheduler(1)
    queue.submit("a", 1)
    queue.ended("a")
    assert not queue.is_waiting("a")
    assert queue.decide() == []


def test_what_can_never_run_is_refused() -> None:
    with pytest.raises(Unavailable, match="needs 3 CPU slots, and this service may use 2"):
        Scheduler(2).submit("a", 3)
    queue = Scheduler(1)
    for number in range(MAX_WAITING):
        queue.submit(str(number), 1)
    with pytest.raises(Unavailable, match="are waiting already"):
        queue.submit("one more", 1)


@given(st.lists(st.integers(1, 4), max_size=12), st.data())
def test_all_get_their_turn_and_never_more_slots_are_used_than_there_are(needs: list[int], data: st.DataObject) -> None:
    queue = Scheduler(4)
    started: list[str] = []
    for number, slots in enumerate(needs):
        queue.submit(str(number), slots)
    while len(started) < len(needs) or queue.running:
        started += [decision.job for decision in queue.decide() if isinstance(decision, Start)]
        assert queue.in_use <= 4
        queue.ended(data.draw(st.sampled_from(queue.running)))
    assert started == [str(number) for number in range(len(needs))]
