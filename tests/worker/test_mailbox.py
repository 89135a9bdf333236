import threading
from collections.abc import Iterator

import numpy as np
import pytest

from phalanx_proto import reduction
from phalanx_proto.errors import EngineFailed
from phalanx_worker import mailbox
from phalanx_worker.arena import Arena
from phalanx_worker.engine import plan_words
from phalanx_worker.mailbox import DONE, FLOATS_A_LINE, GO, LEAVE, PLAN, FitShape, Mailbox
from tests.worker import builders

SLOTS = 3


@pytest.fixture
def shape() -> FitShape:
    problem = builders.make_problem(rows=70, batch=70)
    return FitShape(sizes=problem.sizes, schedule=problem.schedule, slots=SLOTS, held=2, remote=2)


@pytest.fixture
def arena(shape: FitShape) -> Iterator[Arena]:
    arena = Arena.create(shape.layout())
    yield arena
    arena.close()


def mailbox_of(arena: Arena, shape: FitShape, slot: int) -> Mailbox:
    return Mailbox(arena, slot, plan_words(shape.schedule.capacity))


def dead() -> None:
    raise EngineFailed("engine 2 ended")


def test_the_layout_has_room_for_the_largest_plan_and_every_pending_node(arena: Arena, shape: FitShape) -> None:
    capacity = shape.schedule.capacity
    mail = mailbox_of(arena, shape, SLOTS - 1)
    assert mail.plan.shape == (plan_words(capacity),)
    assert mail.nodes.shape[0] >= reduction.stack_depth(capacity)
    assert mail.nodes.shape[1] >= shape.sizes.node_size
    for lo in range(capacity):
        for hi in range(lo + 1, capacity + 1):
            assert len(reduction.maximal_nodes(lo, hi, capacity)) <= mail.nodes.shape[0]


def test_a_plan_does_not_touch_words_or_neighbours(arena: Arena, shape: FitShape) -> None:
    mail = mailbox_of(arena, shape, 1)
    mail.plan[:] = -7
    assert not mail.words[:PLAN].any()
    assert not arena["mailboxes"][[0, 2]].any()


def test_rows_of_parameters_and_nodes_start_aligned(arena: Arena) -> None:
    assert mailbox.padded(1) == FLOATS_A_LINE and mailbox.padded(FLOATS_A_LINE) == FLOATS_A_LINE
    assert all(arena["parameters"][number].ctypes.data % 64 == 0 for number in (0, 1))
    assert all(arena["nodes"][slot, 1].ctypes.data % 64 == 0 for slot in range(SLOTS))


def test_row_buffers_are_flat_and_apart(arena: Arena, shape: FitShape) -> None:
    first, second = mailbox.row_buffers(arena)
    assert first.shape == second.shape == (2 * shape.schedule.capacity * shape.schedule.block,)
    first[:] = 1
    assert not second.any()


def test_a_waiter_returns_at_the_value(arena: Arena, shape: FitShape) -> None:
    mail = mailbox_of(arena, shape, 0)
    mail.post(DONE, 3)
    assert mail.wait(DONE, 3, dead, timeout=1.0)


def test_a_waiter_leaves_when_told(arena: Arena, shape: FitShape) -> None:
    mail = mailbox_of(arena, shape, 1)
    mail.post(GO, LEAVE)
    assert not mail.wait(GO, 1, dead, timeout=1.0)


def test_letting_go_reaches_all_but_the_leader(arena: Arena) -> None:
    mailbox.let_go(arena)
    assert arena["mailboxes"][:, GO].tolist() == [0, LEAVE, LEAVE]


def test_a_waiter_learns_of_a_death(arena: Arena, shape: FitShape) -> None:
    with pytest.raises(EngineFailed, match="engine 2 ended"):
        mailbox_of(arena, shape, 0).wait(DONE, 1, dead, timeout=60.0)


def test_a_waiter_does_not_wait_for_ever(arena: Arena, shape: FitShape) -> None:
    with pytest.raises(EngineFailed, match="did not answer within 0 s"):
        mailbox_of(arena, shape, 0).wait(DONE, 1, lambda: None, timeout=0.01)


def test_what_was_written_before_a_post_is_there_after_the_wait(arena: Arena, shape: FitShape) -> None:
    """Two threads pass 500 values to and fro; each reads only what the other has published."""
    rounds, torn = 500, []
    near, far = mailbox_of(arena, shape, 1), mailbox_of(arena, shape, 1)

    def follow() -> None:
        for number in range(1, rounds + 1):
            far.wait(GO, number, lambda: None, timeout=30.0)
            far.nodes[:] = far.plan[0]
            far.post(DONE, number)

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(1, rounds + 1):
        near.plan[:] = number
        near.post(GO, number)
        near.wait(DONE, number, lambda: None, timeout=30.0)
        if not np.all(near.nodes == number):
            torn.append(number)
    thread.join(timeout=30.0)
    assert torn == [] and not thread.is_alive()
