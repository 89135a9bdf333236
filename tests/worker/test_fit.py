from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phalanx_proto import blocks, reduction, tensors
from phalanx_proto.errors import LedgerMismatch
from phalanx_proto.experiment import DType, OptimizerSpec
from phalanx_worker import fit
from phalanx_worker.fit import CanonicalFit
from phalanx_worker.member_fit import MemberFit
from tests.worker import builders
from tests.worker.builders import Problem


def make(dtype: DType = "float64", seed: int = 7) -> Problem:
    """Updates of 26 and 24 rows: 7 blocks, the last with 2 rows, then 6."""
    return builders.make_problem(builders.make_spec(dtype), rows=50, batch=26, epochs=3, seed=seed)


@pytest.fixture(params=["float32", "float64"])
def problem(request: pytest.FixtureRequest) -> Problem:
    return make(request.param)


@pytest.fixture
def doubles() -> Problem:
    return make()


def run_stretch(
    problem: Problem, weights: list[float], seconds: float = 1e9, **options: Any
) -> tuple[CanonicalFit, list[dict[str, Any]]]:
    with builders.gang(problem, len(weights)) as leader:
        own = builders.canonical(leader, problem, weights, **options)
        epochs: list[dict[str, Any]] = []
        while own.update < problem.schedule.updates:
            answer = own.stretch(problem.schedule.updates, seconds)
            assert answer["stopped"] is None and answer["update"] == own.update
            epochs += answer["epochs"]
        return own, epochs


def run_apart(problem: Problem, shares: list[float]) -> tuple[CanonicalFit, list[dict[str, Any]]]:
    """Part and commit, with a second leader as the remote member that takes what the first does not."""
    schedule = problem.schedule
    with builders.gang(problem, 1, remote=16) as leader, builders.gang(problem, 2, held=1) as other:
        own, member = builders.canonical(leader, problem, [1.0]), MemberFit(leader=other)
        epochs: list[dict[str, Any]] = []
        for update in range(schedule.updates):
            n = schedule.blocks_of(update)
            here, there = blocks.share_blocks(n, shares, update)
            own.part([here])
            index, found = update % schedule.updates_per_epoch, dict[builders.Span, builders.Vector]()
            if there[0] < there[1]:
                ids = builders.ids_of(schedule, update // schedule.updates_per_epoch)
                first = index * schedule.capacity * schedule.block + there[0] * schedule.block
                rows = ids[first : first + blocks.rows_in(*there, schedule.block, schedule.rows_of(update))]
                other.publish(leader.arena["parameters"][update & 1][: problem.sizes.parameters], update)
                found, receipt = member.nodes(update, *there, rows)
                assert receipt.rows == len(rows)
                assert list(found) == list(reduction.maximal_nodes(*there, n))
            remote = []
            for place, (span, values) in enumerate(found.items()):
                leader.arena["remote"][place][: problem.sizes.node_size] = values
                remote.append((*span, place))
            answer = own.commit(remote)
            assert answer["stopped"] is None and answer["update"] == update + 1
            epochs += answer["epochs"]
        return own, epochs


def test_every_way_to_share_an_update_ends_in_the_same_bits(problem: Problem) -> None:
    alone, history = run_stretch(problem, [1.0])
    digest = tensors.digest(alone.parameters)
    for weights in ([1.0, 1.0], [1.0, 7.0], [3.0, 1.0, 2.0], [0.0, 1.0]):
        other, epochs = run_stretch(problem, weights)
        assert tensors.digest(other.parameters) == digest, weights
        assert epochs == history
    for shares in ([1.0, 1.0], [1.0, 20.0]):
        other, epochs = run_apart(problem, shares)
        assert tensors.digest(other.parameters) == digest, shares
        assert epochs == history


@pytest.mark.parametrize("slots", [1, 2])
def test_a_part_may_come_in_pieces(doubles: Problem, slots: int) -> None:
    """As when a lost member's blocks come to the own slots in the same update."""
    with builders.gang(doubles, slots) as leader:
        own = builders.canonical(leader, doubles, [1.0] * slots)
        for update in range(doubles.schedule.updates):
            n = doubles.schedule.blocks_of(update)
            cuts = [0, n // 3, n // 3, n - n // 4, n]
            for lo, hi in reversed([*pairwise(cuts)]):
                own.part(blocks.split_even(lo, hi, slots, update))
            assert own.commit([])["stopped"] is None
        digest = tensors.digest(own.parameters)
    assert digest == tensors.digest(run_stretch(doubles, [1.0])[0].parameters)


def test_stretches_may_be_cut_anywhere(doubles: Problem) -> None:
    whole, history = run_stretch(doubles, [1.0])
    cut, epochs = run_stretch(doubles, [1.0], seconds=0.0)
    assert tensors.digest(cut.parameters) == tensors.digest(whole.parameters)
    assert epochs == history and [line["epoch"] for line in epochs] == [0, 1, 2]


def test_the_history_holds_sums_over_each_row_once(doubles: Problem) -> None:
    _, history = run_stretch(doubles, [1.0])
    assert [line["train"][1] for line in history] == [50.0] * 3
    assert all(line["validation"] is None for line in history)
    losses = [line["train"][0] / 50 for line in history]
    assert losses == sorted(losses, reverse=True), "Adam learns this problem"


def test_warm_means_that_nothing_is_compiled_later(doubles: Problem) -> None:
    programs = builders.artifacts_of(doubles.spec)
    with builders.gang(doubles, 2, remote=2) as leader:
        leader.engine = builders.engine_of(doubles, **programs)
        own = builders.canonical(leader, doubles, [1.0, 1.0], validation=validation(doubles))
        own.canaries()
        with builders.compilations() as compiled:
            own.stretch(3, 1e9)
            own.part([(0, 6), (0, 0)])
            own.commit([])
        assert own.update == 4 and not {"jit(nodes)", "jit(commit)", "jit(total)"} & set(compiled)


def test_canaries_change_nothing(doubles: Problem) -> None:
    with builders.gang(doubles, 2) as leader:
        own = builders.canonical(leader, doubles, [1.0, 1.0])
        found = own.canaries()
        node = np.empty(doubles.sizes.node_size)
        own.canary_node(node)
        assert len(found) == 2 and len({canary.digest for canary in found}) == 1
        assert found[0].digest == tensors.digest(node)
        assert all(canary.deviation == 0.0 for canary in found)
        assert own.update == 0 and own.parameters.tobytes() == doubles.initial.tobytes()
        assert [tally.rows for tally in leader.tallies] == [0, 0]
        own.stretch(6, 1e9)
        digest = tensors.digest(own.parameters)
    assert digest == tensors.digest(run_stretch(doubles, [1.0])[0].parameters)


def test_a_slot_that_computes_other_bits_deviates(doubles: Problem) -> None:
    other = make(seed=8)
    with builders.gang(doubles, 2) as leader:
        builders.bound_engine(other, slot=1)
        found = builders.canonical(leader, doubles, [1.0, 1.0]).canaries()
        assert found[0].digest != found[1].digest and found[1].deviation > 1e-3


def test_idle_slots_count_nothing_and_others_count_every_row(doubles: Problem) -> None:
    with builders.gang(doubles, 3) as leader:
        builders.canonical(leader, doubles, [0.0, 1.0, 1.0]).stretch(6, 1e9)
        rows = [tally.rows for tally in leader.tallies]
    assert rows[0] == 0 and sum(rows) == 150 and min(rows[1:]) > 0


def validation(problem: Problem, rows: int = 21) -> tuple[NDArray[Any], NDArray[Any], int]:
    size = problem.spec.score_block
    x, y = np.zeros((-(-rows // size) * size, 5), problem.spec.dtype), np.zeros(-(-rows // size) * size, np.int32)
    x[:rows], y[:rows] = problem.x[-rows:], problem.y[-rows:]
    x[rows:], y[rows:] = 1e3, 2
    return x, y, rows


@pytest.mark.parametrize("rows", [1, 8, 21])
def test_validation_counts_rows_once(doubles: Problem, rows: int) -> None:
    own, history = run_stretch(doubles, [1.0], validation=validation(doubles, rows))
    assert [line["validation"][1] for line in history] == [rows] * 3
    outputs = builders.bound_engine(doubles).predict(own.parameters, doubles.x[-rows:])
    losses = -np.log(outputs[np.arange(rows), doubles.y[-rows:]])
    assert history[-1]["validation"][0] == pytest.approx(losses.sum(), rel=1e-12)
    assert history[-1]["validation"][2] == (outputs.argmax(axis=1) == doubles.y[-rows:]).sum()
    assert own.validation_ns > 0


def test_the_best_epoch_is_kept_not_the_last() -> None:
    spec = builders.make_spec(optimizer=OptimizerSpec(name="sgd", rate=6.0))
    problem = builders.make_problem(spec, rows=50, batch=26, epochs=8)
    kept, history = run_stretch(problem, [1.0], validation=validation(problem), keep_best=True)
    losses = [line["validation"][0] / line["validation"][1] for line in history]
    best = int(np.argmin(losses))
    assert best < 7, "this rate is too high to go on getting better"
    assert kept.best == (losses[best], best)
    short = builders.make_problem(spec, rows=50, batch=26, epochs=best + 1)
    assert tensors.digest(kept.parameters) == tensors.digest(run_stretch(short, [1.0])[0].parameters)
    last, _ = run_stretch(problem, [1.0], validation=validation(problem))
    assert tensors.digest(last.parameters) != tensors.digest(kept.parameters) and last.best is None


def poisoned(problem: Problem, update: int, place: int) -> int:
    """Make the features of the row at this place of the update not finite; returns the row."""
    index = update % problem.schedule.updates_per_epoch
    ids = builders.ids_of(problem.schedule, update // problem.schedule.updates_per_epoch)
    row = int(ids[index * problem.schedule.capacity * problem.schedule.block + place])
    problem.x[row, 2] = np.nan
    return row


@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.0], [0.0, 1.0]], ids=str)
@pytest.mark.parametrize(("place", "block"), [(0, 0), (13, 3), (25, 6)])
def test_a_sum_that_is_not_finite_stops_and_is_found(doubles: Problem, weights: list[float], place: int, block: int) -> None:
    row = poisoned(doubles, 0, place)
    with builders.gang(doubles, len(weights)) as leader:
        own = builders.canonical(leader, doubles, weights)
        answer = own.stretch(6, 1e9)
        assert answer == {"update": 0, "epochs": [], "stopped": "not finite"}
        assert own.parameters.tobytes() == doubles.initial.tobytes()
        found = own.diagnose()
    ids = builders.ids_of(doubles.schedule)
    rows = ids[block * 4 : min(block * 4 + 4, 26)].tolist()
    assert found == (block, rows) and row in rows


def test_what_was_committed_before_a_stop_stays(doubles: Problem) -> None:
    row = poisoned(doubles, 1, 5)
    with builders.gang(doubles, 1) as leader:
        own = builders.canonical(leader, doubles, [1.0])
        assert own.stretch(6, 1e9)["update"] == 1
        kept, found = own.parameters.copy(), own.diagnose()
    assert found is not None and found[0] == 1 and row in found[1]
    doubles.x[row] = 0
    with builders.gang(doubles, 1) as leader:
        again = builders.canonical(leader, doubles, [1.0])
        again.stretch(1, 1e9)
        assert again.parameters.tobytes() == kept.tobytes()


def test_an_update_that_alone_is_not_finite_has_no_block() -> None:
    problem = builders.make_problem(builders.make_spec(optimizer=builders.SGD), rows=50, batch=26)
    overflow = builders.update_program(problem.sizes, lambda p, g, n: (p + 1e308 + 1e308,))
    with builders.gang(problem, 1) as leader:
        gradient = builders.artifacts_of(problem.spec)["gradient"]
        leader.engine = builders.engine_of(problem, gradient=gradient, update=overflow)
        own = builders.canonical(leader, problem, [1.0])
        assert own.stretch(6, 1e9)["stopped"] == "not finite"
        assert own.diagnose() is None


def test_weights_that_do_not_add_up_to_the_plan_are_not_committed(doubles: Problem) -> None:
    with builders.gang(doubles, 1, remote=2) as leader:
        own = builders.canonical(leader, doubles, [1.0])
        own.part([(0, 3)])
        leader.arena["remote"][0][: doubles.sizes.node_size] = 1.0
        with pytest.raises(LedgerMismatch, match=r"update 0: the weights add up to 13\.0, the plan has 26 rows"):
            own.commit([(3, 7, 0)])
        assert own.update == 0 and own.parameters.tobytes() == doubles.initial.tobytes()


def test_a_missing_node_is_not_committed(doubles: Problem) -> None:
    with builders.gang(doubles, 1, remote=2) as leader:
        own = builders.canonical(leader, doubles, [1.0])
        own.part([(0, 3)])
        with pytest.raises(LedgerMismatch, match="no node covers block 3"):
            own.commit([])
        assert own.update == 0


@pytest.mark.parametrize("weights", [[1.0, 0.0, 2.0], [0.0, 1.0], [1.0]])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_slots_of_no_weight_get_no_blocks(weights: list[float], n: int) -> None:
    seen = np.zeros(len(weights))
    for turn in range(4):
        ranges = fit.slot_ranges(n, weights, turn)
        covered = sorted(block for lo, hi in ranges for block in range(lo, hi))
        assert covered == list(range(n))
        seen += [hi - lo for lo, hi in ranges]
    assert [count > 0 for count in seen] == [weight > 0 for weight in weights]


def test_the_first_slot_with_a_share_diagnoses() -> None:
    assert fit.first_computing([0.0, 2.0, 1.0]) == 1
    assert fit.first_computing([0.0, 0.0]) == 0
