import numpy as np
import pytest

from phalanx_proto import tensors
from phalanx_proto.errors import EngineFailed, InvalidRequest
from phalanx_worker.gang import Leader
from phalanx_worker.member_fit import MemberFit
from tests.worker import builders
from tests.worker.builders import Problem


def make(seed: int = 7) -> Problem:
    """Updates of 26 and 24 rows: 7 blocks, the last with 2 rows, then 6."""
    return builders.make_problem(rows=50, batch=26, seed=seed)


@pytest.fixture
def doubles() -> Problem:
    return make()


def member(leader: Leader, problem: Problem) -> MemberFit:
    leader.publish(problem.initial, 0)
    return MemberFit(leader=leader)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_member_answers_with_the_maximal_nodes_whatever_its_slots(doubles: Problem, slots: int) -> None:
    ids = builders.ids_of(doubles.schedule)
    single = builders.bound_engine(doubles)
    wanted = builders.nodes_of(single, doubles.schedule, doubles.initial, ids, 1, 7)
    with builders.gang(doubles, slots, held=1) as leader:
        found, receipt = member(leader, doubles).nodes(0, 1, 7, ids[4:26])
        assert {span: values.tobytes() for span, values in found.items()} == {
            span: values.tobytes() for span, values in wanted.items()
        }
    assert receipt.rows == 22 and receipt.resident is None and receipt.readback_ns is None
    assert receipt.total_ns is not None and receipt.compute_ns is not None and receipt.prepare_ns is not None
    assert receipt.total_ns >= receipt.compute_ns + receipt.prepare_ns


@pytest.mark.parametrize(
    ("update", "lo", "hi", "rows", "message"),
    [
        (0, 0, 8, range(26), "blocks .* are not a range of its 7 blocks"),
        (1, 0, 7, range(24), "blocks .* are not a range of its 6 blocks"),
        (0, 3, 3, range(0), "are not a range"),
        (0, 4, 2, range(0), "are not a range"),
        (-1, 0, 1, range(4), "not a number from 0"),
        (1 << 31, 0, 1, range(4), "not a number from 0"),
        (0, 0, 2, range(7), "7 row ids came for 8 rows"),
        (0, 6, 7, range(4), "4 row ids came for 2 rows"),
        (0, 0, 1, range(47, 51), "a row id lies outside the 50 rows"),
        (0, 0, 1, range(-1, 3), "a row id lies outside the 50 rows"),
    ],
)
def test_a_member_refuses_what_does_not_fit_its_plan(
    doubles: Problem, update: int, lo: int, hi: int, rows: range, message: str
) -> None:
    with builders.gang(doubles, 1, held=1) as leader, pytest.raises(InvalidRequest, match=message):
        member(leader, doubles).nodes(update, lo, hi, np.array(rows, np.int32))


def test_a_member_whose_slots_disagree_is_refused(doubles: Problem) -> None:
    other = make(seed=8)
    rows = builders.ids_of(doubles.schedule)[:4]
    with builders.gang(doubles, 2, held=1) as leader:
        digest = member(leader, doubles).canary(rows, doubles.initial)
        single = builders.nodes_of(
            builders.bound_engine(doubles), doubles.schedule, doubles.initial, builders.ids_of(doubles.schedule), 0, 1
        )  # fmt: skip
        assert digest == tensors.digest(single[0, 1])
        builders.bound_engine(other, slot=1)
        with pytest.raises(EngineFailed, match=r"slots \[1\] of one worker compute other bits"):
            member(leader, doubles).canary(rows, doubles.initial)
