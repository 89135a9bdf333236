import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phalanx_proto import blocks, reduction
from phalanx_proto.errors import EngineFailed, LedgerMismatch
from phalanx_worker import mailbox
from phalanx_worker.arena import Arena
from phalanx_worker.engine import Times
from phalanx_worker.gang import Follower, Leader, Range
from phalanx_worker.mailbox import FitShape
from tests.worker import builders
from tests.worker.builders import Problem


class CountingEngine:
    """Stands for ``FitEngine``: the "gradient" of a block is its first row id; it can fail and miscount."""

    def __init__(self, problem: Problem) -> None:
        self.sizes = problem.sizes
        self.calls: list[tuple[int, int]] = []
        self.plans: list[NDArray[np.int32]] = []

    def nodes(self, parameters: Any, ids: Any, plan: Any) -> tuple[Any, Times]:
        self.calls.append((int(plan[4]), int(plan[4] + plan[2])))
        self.plans.append(plan.copy())
        pending: list[NDArray[np.float64]] = []
        for k in range(plan[2]):
            node = np.full(self.sizes.node_size, float(ids[plan[0] + k * self.sizes.block]))
            for _ in range(plan[8 + k]):
                node = pending.pop() + node
            pending.append(node)
        return np.array(pending), Times(prepare=0, compute=5, readback=2)


class Gang:
    """A leader and followers with counting engines; the followers serve in threads."""

    def __init__(self, problem: Problem, slots: int, alive: Any = lambda: None, timeout: float = 30.0) -> None:
        self.shape = FitShape(sizes=problem.sizes, schedule=problem.schedule, slots=slots, held=2)
        self.arena = Arena.create(self.shape.layout())
        self.engines = [CountingEngine(problem) for _ in range(slots)]
        self.leader = Leader(
            engine=self.engines[0], arena=self.arena, shape=self.shape, alive=alive, timeout=timeout  # type: ignore[arg-type]
        )  # fmt: skip
        self.threads: list[threading.Thread] = []

    def serve(self) -> "Gang":
        for slot, own in enumerate(self.engines[1:], 1):
            follower = Follower(own, self.arena, self.shape, slot)  # type: ignore[arg-type]
            self.threads.append(threading.Thread(target=follower.serve, args=(lambda: None,)))
            self.threads[-1].start()
        return self

    def close(self) -> None:
        self.leader.release()
        for thread in self.threads:
            thread.join(timeout=30.0)
        assert not any(thread.is_alive() for thread in self.threads)
        self.arena.close()


@pytest.fixture
def problem() -> Problem:
    return builders.make_problem(rows=50, batch=26)


@pytest.fixture
def trio(problem: Problem) -> Iterator[Gang]:
    found = Gang(problem, 3).serve()
    yield found
    found.close()


def ask(gang: Gang, ranges: list[Range], update: int = 0) -> dict[Range, NDArray[np.float64]]:
    ids = builders.ids_of(gang.shape.schedule)
    gang.arena["ids0"].reshape(-1)[:] = ids
    parameters = np.zeros(gang.shape.sizes.parameters)
    gang.leader.publish(parameters, update)
    return gang.leader.nodes(parameters, update, ranges, update, 0)


def expected(gang: Gang, lo: int, hi: int, update: int) -> float:
    schedule = gang.shape.schedule
    ids = builders.ids_of(schedule)
    base = update * schedule.capacity * schedule.block
    return float(sum(ids[base + k * schedule.block] for k in range(lo, hi)))


@pytest.mark.parametrize("update", [0, 1])
@pytest.mark.parametrize("cuts", [(0, 0, 0), (2, 5, 7), (0, 3, 3), (1, 1, 6), (7, 7, 7)])
def test_each_slot_returns_the_maximal_nodes_of_its_range(trio: Gang, cuts: tuple[int, ...], update: int) -> None:
    n = trio.shape.schedule.blocks_of(update)
    edges = [0, *(min(cut, n) for cut in cuts[:2]), n]
    ranges = list(pairwise(edges))
    found = ask(trio, ranges, update)
    wanted = [span for lo, hi in ranges for span in reduction.maximal_nodes(lo, hi, n)]
    assert sorted(found) == sorted(wanted)
    assert all((values == expected(trio, *span, update)).all() for span, values in found.items())
    assert reduction.combine(found, 0, n)[0] == expected(trio, 0, n, update)


def test_only_slots_with_blocks_are_asked(trio: Gang) -> None:
    ask(trio, [(0, 3), (3, 3), (3, 7)])
    assert [own.calls for own in trio.engines] == [[(0, 3)], [], [(3, 7)]]


def test_rows_are_accounted_without_padding(trio: Gang) -> None:
    schedule, block = trio.shape.schedule, trio.shape.sizes.block
    for update, ranges in ((0, [(0, 2), (2, 5), (5, 7)]), (1, [(0, 1), (1, 1), (1, 6)])):
        ask(trio, ranges, update)
    rows = [tally.rows for tally in trio.leader.tallies]
    assert sum(rows) == schedule.rows_of(0) + schedule.rows_of(1) == 50
    assert rows == [2 * block + block, 3 * block, 26 - 5 * block + 24 - block]
    assert [tally.updates for tally in trio.leader.tallies] == [2, 1, 2]
    assert [tally.compute for tally in trio.leader.tallies] == [10, 5, 10]
    assert [tally.readback for tally in trio.leader.tallies] == [4, 2, 4]


def test_tallies_can_be_forgotten(trio: Gang) -> None:
    ask(trio, [(0, 2), (2, 5), (5, 7)])
    trio.leader.reset_tallies()
    assert [tally.rows for tally in trio.leader.tallies] == [0, 0, 0]


def test_a_plan_carries_rows_blocks_update_and_merges(trio: Gang) -> None:
    ask(trio, [(0, 0), (0, 0), (3, 6)], update=1)
    (plan,) = trio.engines[2].plans
    schedule = trio.shape.schedule
    assert plan[:5].tolist() == [schedule.capacity * 4 + 12, 12, 3, 1, 3]
    assert plan[8:11].tolist() == reduction.merge_schedule(3, 6, 6).tolist()


def test_parameters_alternate_between_two_buffers(trio: Gang) -> None:
    for update in (4, 5):
        trio.leader.publish(np.full(trio.shape.sizes.parameters, float(update)), update)
    held = trio.arena["parameters"][:, : trio.shape.sizes.parameters]
    assert held[0].tolist() == [4.0] * held.shape[1] and held[1].tolist() == [5.0] * held.shape[1]


def test_a_follower_that_dies_is_an_error(problem: Problem) -> None:
    def alive() -> None:
        raise EngineFailed("engine 2 ended while its leader waited for it")

    gang = Gang(problem, 2, alive)
    with pytest.raises(EngineFailed, match="engine 2 ended"):
        ask(gang, [(0, 3), (3, 7)])
    gang.close()


def test_a_follower_that_never_answers_is_an_error(problem: Problem) -> None:
    gang = Gang(problem, 2, timeout=0.05)
    with pytest.raises(EngineFailed, match="did not answer"):
        ask(gang, [(0, 3), (3, 7)])
    gang.close()


def test_a_follower_that_leaves_is_an_error(problem: Problem) -> None:
    gang = Gang(problem, 2)
    gang.arena["mailboxes"][1, mailbox.DONE] = mailbox.LEAVE
    with pytest.raises(EngineFailed, match="slot 1 left during update 0"):
        ask(gang, [(0, 3), (3, 7)])
    gang.close()


@pytest.mark.parametrize("word", [mailbox.ROWS_DONE, mailbox.NODES])
def test_a_follower_that_miscounts_is_a_ledger_mismatch(problem: Problem, word: int) -> None:
    gang = Gang(problem, 2)
    words = gang.arena["mailboxes"][1]
    words[[mailbox.ROWS_DONE, mailbox.NODES]] = 14, len(reduction.maximal_nodes(3, 7, 7))
    words[word] += 1
    words[mailbox.DONE] = 1
    with pytest.raises(LedgerMismatch, match="slot 1 accounted for other rows"):
        ask(gang, [(0, 3), (3, 7)])
    gang.close()


def test_a_released_follower_has_done_all_it_was_asked(problem: Problem) -> None:
    gang = Gang(problem, 2).serve()
    for _ in range(3):
        ask(gang, [(0, 3), (3, 7)])
    gang.close()
    assert gang.engines[1].calls == [(3, 7)] * 3


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_real_engines_give_the_same_root_for_any_number_of_slots(slots: int) -> None:
    problem = builders.make_problem(builders.make_spec("float32"), rows=50, batch=50)
    schedule, n = problem.schedule, problem.schedule.blocks_of(0)
    alone = builders.bound_engine(problem)
    wanted = builders.nodes_of(alone, schedule, problem.initial, builders.ids_of(schedule), 0, n)[(0, n)]
    with builders.gang(problem, slots) as leader:
        leader.arena["ids0"].reshape(-1)[:] = builders.ids_of(schedule)
        for turn in range(3):
            leader.publish(problem.initial, 0)
            found = leader.nodes(problem.initial, 0, list(blocks.split_even(0, n, slots, turn)), 0, 0)
            assert reduction.combine(found, 0, n).tobytes() == wanted.tobytes()
        assert sum(tally.rows for tally in leader.tallies) == 150
