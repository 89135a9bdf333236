import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from phalanx_proto import reduction
from phalanx_proto.errors import InvalidRequest, Unavailable
from phalanx_proto.experiment import DType
from phalanx_proto.programs import load
from phalanx_worker import engine
from phalanx_worker.engine import FitEngine
from phalanx_worker.gang import Work
from tests.worker import builders
from tests.worker.builders import Problem

DTYPES: tuple[DType, ...] = ("float32", "float64")
TOLERANCE = {"float32": 1e-6, "float64": 1e-13}
ROWS = 26
"""Seven blocks of four rows, the last with two rows of padding."""


@pytest.fixture(params=DTYPES)
def problem(request: pytest.FixtureRequest) -> Problem:
    return builders.make_problem(builders.make_spec(request.param), rows=50, batch=ROWS)


def leaves(own: FitEngine, problem: Problem, ids: NDArray[np.int32]) -> builders.Nodes:
    """Every block of update 0 by itself."""
    found: builders.Nodes = {}
    for block in range(problem.schedule.blocks_of(0)):
        found |= builders.nodes_of(own, problem.schedule, problem.initial, ids, block, block + 1)
    return found


def root_of(own: FitEngine, problem: Problem, ids: NDArray[np.int32] | None = None) -> NDArray[np.float64]:
    n = problem.schedule.blocks_of(0)
    ids = builders.ids_of(problem.schedule) if ids is None else ids
    return builders.nodes_of(own, problem.schedule, problem.initial, ids, 0, n)[0, n]


def program(problem: Problem, function: Any) -> bytes:
    return builders.gradient_program(problem, function)


def test_nodes_of_any_range_are_the_subtrees_of_the_full_range(problem: Problem) -> None:
    own, ids, n = builders.bound_engine(problem), builders.ids_of(problem.schedule), 7
    single = leaves(own, problem, ids)
    for lo, hi in itertools.combinations(range(n + 1), 2):
        found = builders.nodes_of(own, problem.schedule, problem.initial, ids, lo, hi)
        assert list(found) == list(reduction.maximal_nodes(lo, hi, n))
        for span, values in found.items():
            assert values.dtype == np.float64
            assert values.tobytes() == reduction.combine(single, *span).tobytes(), (lo, hi, span)


def test_one_executable_serves_every_range_and_update(problem: Problem) -> None:
    own = builders.engine_of(problem, gradient=builders.artifacts_of(problem.spec)["gradient"])
    ids = builders.ids_of(problem.schedule)
    with builders.compilations() as compiled:
        for lo, hi, update in ((0, 7, 0), (2, 5, 0), (6, 7, 0), (0, 6, 1), (3, 4, 1)):
            builders.nodes_of(own, problem.schedule, problem.initial, ids, lo, hi, update)
        builders.nodes_of(own, problem.schedule, own.put(problem.initial), ids, 0, 7)
    assert compiled.count("jit(nodes)") == 1


def test_one_executable_commits_whatever_the_root_lies_in(problem: Problem) -> None:
    own = builders.engine_of(problem, update=builders.artifacts_of(problem.spec)["update"])
    root = sums(problem, 1.0, 4)
    stack, state = own.put(root), [own.put(np.zeros_like(problem.initial))] * 2
    with builders.compilations() as compiled:
        infos = [own.commit(own.put(problem.initial), place, 0, state)[0] for place in (root, stack)]
    assert compiled.count("jit(commit)") == 1
    assert infos[0].tobytes() == infos[1].tobytes()


def test_the_gradient_is_that_of_the_whole_batch(problem: Problem) -> None:
    root = root_of(builders.bound_engine(problem), problem)
    rows = builders.ids_of(problem.schedule)[:ROWS]
    loss, gradient = jax.value_and_grad(lambda p: builders.reference_loss(problem, p, problem.x[rows], problem.y[rows]))(
        jnp.asarray(problem.initial)
    )
    size, limit = problem.sizes.parameters, TOLERANCE[problem.sizes.dtype]
    mean = root[:size] / root[size + 1]
    assert np.abs(mean - gradient).max() <= limit * np.abs(gradient).max()
    assert root[size] / root[size + 1] == pytest.approx(float(loss), rel=limit)
    assert root[size + 1] == ROWS


def test_metrics_count_rows(problem: Problem) -> None:
    root = root_of(builders.bound_engine(problem), problem)
    assert root[-1] == int(root[-1]) and 0 <= root[-1] <= ROWS


def test_padding_rows_contribute_nothing(problem: Problem) -> None:
    ids = builders.ids_of(problem.schedule)
    before = root_of(builders.bound_engine(problem), problem, ids)
    stranger = next(row for row in range(problem.schedule.rows) if row not in ids[:ROWS])
    problem.x[stranger] = np.inf
    ids[ROWS : problem.schedule.capacity * problem.spec.block] = stranger
    after = root_of(builders.bound_engine(problem), problem, ids)
    assert np.isfinite(after).all() and after.tobytes() == before.tobytes()


def test_rows_after_the_last_of_a_batch_are_not_read_as_rows(problem: Problem) -> None:
    """The weight of a padding row is zero, whatever row it names."""
    counted = program(problem, lambda p, x, y, w, k: (p * 0, jnp.sum(w * y), jnp.sum(w), jnp.sum(w)[None]))
    root = root_of(builders.engine_of(problem, gradient=counted), problem)
    rows = builders.ids_of(problem.schedule)[:ROWS]
    size = problem.sizes.parameters
    assert root[size:].tolist() == [problem.y[rows].sum(), ROWS, ROWS]


def test_the_key_names_seed_update_and_block(problem: Problem) -> None:
    """A program's key is (seed low, seed high, update, block), the same whatever the range."""
    seed = 5 + (9 << 32)

    def echo(p: Any, x: Any, y: Any, w: Any, key: Any) -> Any:
        return jnp.zeros_like(p).at[:4].set(key.astype(p.dtype)), p[0] * 0, jnp.sum(w), jnp.sum(w)[None]

    own = builders.engine_of(problem, gradient=program(problem, echo))
    own.bind(problem.x, problem.y, seed)
    ids = builders.ids_of(problem.schedule)
    for lo, hi, update, block in ((3, 4, 0, 3), (5, 6, 1, 5)):
        found = builders.nodes_of(own, problem.schedule, problem.initial, ids, lo, hi, update)
        assert found[block, block + 1][:4].tolist() == [5, 9, update, block]


def test_the_tree_on_the_host_gives_the_same_bits(problem: Problem) -> None:
    """A device without Float64 returns blocks in the group dtype; the same tree is then added on the host."""
    ids = builders.ids_of(problem.schedule)
    own, host = builders.bound_engine(problem), FitEngine(problem.sizes, {}, builders.cpu(), problem.schedule.capacity)
    host.host_tree = True
    host.bind(problem.x, problem.y, problem.schedule.seed)
    gradient = load(builders.artifacts_of(problem.spec)["gradient"]).call
    host._nodes = engine.leaf_executable(problem.sizes, gradient, host.device)
    for lo, hi in ((0, 7), (1, 6), (6, 7)):
        wanted = builders.nodes_of(own, problem.schedule, problem.initial, ids, lo, hi)
        found = builders.nodes_of(host, problem.schedule, problem.initial, ids, lo, hi)
        assert {span: values.tobytes() for span, values in found.items()} == {
            span: values.tobytes() for span, values in wanted.items()
        }


def test_results_held_by_a_caller_do_not_disturb_the_next_call(problem: Problem) -> None:
    """The stack is donated to the next call; a NumPy view of it may still be held, as the leader holds one."""
    own, ids, n = builders.bound_engine(problem), builders.ids_of(problem.schedule), 7
    wanted = [root_of(own, problem, ids) for _ in range(2)]
    plan = np.zeros(engine.plan_words(n), np.int32)
    Work(update=0, lo=0, hi=n, blocks=n, rows=ROWS, offset=0).write(plan, problem.spec.block)
    held = [np.asarray(own.nodes(problem.initial, ids, plan)[0]) for _ in range(4)]
    wanted.append(root_of(own, problem, ids))
    assert len({root.tobytes() for root in wanted}) == 1
    assert held[-1].shape == (own.depth, problem.sizes.node_size)


def test_a_failed_call_leaves_the_engine_usable(problem: Problem) -> None:
    own, ids = builders.bound_engine(problem), builders.ids_of(problem.schedule)
    wanted = root_of(own, problem, ids)
    with pytest.raises(ValueError, match="Shape mismatch"):
        own.nodes(problem.initial[:-1], ids, np.zeros(engine.plan_words(7), np.int32))
    assert root_of(own, problem, ids).tobytes() == wanted.tobytes()


def sums(problem: Problem, gradient: float, weight: float) -> NDArray[np.float64]:
    root = np.zeros((1, problem.sizes.node_size))
    root[0, : problem.sizes.parameters], root[0, problem.sizes.parameters + 1] = gradient, weight
    return root


def test_the_mean_of_uneven_sums_is_over_rows(problem: Problem) -> None:
    """Means 2 and 4 over 32 and 224 rows are 3.75 over all 256, not 3."""
    own = builders.engine_of(problem, update=builders.update_program(problem.sizes, lambda p, g, n: (p - g,)))
    root = sums(problem, 2.0 * 32, 32) + sums(problem, 4.0 * 224, 224)
    info, parameters, state = own.commit(np.zeros(problem.sizes.parameters, problem.spec.dtype), root, 0, [])
    assert np.asarray(parameters).tolist() == [-3.75] * problem.sizes.parameters
    assert info.tolist() == [1.0, 0.0, 256.0, 0.0] and state == []


def test_the_update_is_told_its_number_and_changes_nothing_in_place(problem: Problem) -> None:
    number = builders.update_program(problem.sizes, lambda p, g, n: (p * 0 + n.astype(p.dtype),))
    own = builders.engine_of(problem, update=number)
    before = problem.initial.copy()
    _, parameters, _ = own.commit(problem.initial, sums(problem, 1.0, 4), 17, [])
    assert np.asarray(parameters).tolist() == [17.0] * problem.sizes.parameters
    assert problem.initial.tobytes() == before.tobytes()


@pytest.mark.parametrize(("place", "value"), [(0, np.nan), (2, np.inf), (-3, -np.inf), (-2, 0.0), (-1, np.nan)], ids=str)
def test_what_is_not_finite_is_flagged(problem: Problem, place: int, value: float) -> None:
    """In the gradient, the loss, the weight (a mean over no rows) and a metric."""
    own = builders.bound_engine(problem)
    root = sums(problem, 1.0, 4)
    root[0, place] = value
    state = [np.zeros(problem.sizes.parameters, problem.spec.dtype)] * 2
    assert own.commit(problem.initial, root, 0, state)[0][0] == 0.0
    assert own.commit(problem.initial, sums(problem, 1.0, 4), 0, state)[0][0] == 1.0


def test_parameters_that_overflow_are_flagged(problem: Problem) -> None:
    largest = np.finfo(problem.spec.dtype).max
    own = builders.engine_of(problem, update=builders.update_program(problem.sizes, lambda p, g, n: (p - 2 * g,)))
    info, _, _ = own.commit(problem.initial, sums(problem, float(largest), 1), 0, [])
    assert info[0] == 0.0


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 23, 24])
def test_a_score_counts_each_row_once(problem: Problem, rows: int) -> None:
    own, size = builders.bound_engine(problem), problem.spec.score_block
    x, y = np.zeros((24, 5), problem.spec.dtype), np.zeros(24, np.int32)
    x[:rows], y[:rows] = problem.x[:rows], problem.y[:rows]
    x[rows:] = np.nan
    found = own.score(problem.initial, x, y, rows)
    assert size == 8 and found[1] == rows
    outputs = own.predict(problem.initial, problem.x[:rows]).astype(np.float64)
    losses = -np.log(outputs[np.arange(rows), problem.y[:rows]])
    assert found[0] == pytest.approx(losses.sum(), rel=10 * TOLERANCE[problem.spec.dtype])
    assert found[2] == (outputs.argmax(axis=1) == problem.y[:rows]).sum()


@pytest.mark.parametrize("rows", [0, 1, 8, 21])
def test_predictions_come_row_by_row(problem: Problem, rows: int) -> None:
    own, x = builders.bound_engine(problem), problem.x[:rows]
    found = own.predict(problem.initial, x)
    assert found.shape == (rows, 3) and found.dtype == problem.spec.dtype
    assert np.allclose(found.sum(axis=1), 1.0)
    odd = np.arange(rows) % 2 == 1
    beside = own.predict(problem.initial, np.where(odd[:, None], x, 3.0 - x).astype(x.dtype))
    assert found[odd].tobytes() == beside[odd].tobytes()  # whatever stands around a row
    again = own.predict(problem.initial, x[::-1])[::-1]  # elsewhere in its block a row may take another path to the last bit
    assert found == pytest.approx(again, rel=10 * TOLERANCE[problem.spec.dtype])


def test_an_engine_does_only_what_it_has_programs_for(problem: Problem) -> None:
    empty = FitEngine(problem.sizes, {}, builders.cpu(), 7)
    plan, ids = np.zeros(engine.plan_words(7), np.int32), builders.ids_of(problem.schedule)
    for call in (
        lambda: empty.nodes(problem.initial, ids, plan),
        lambda: empty.commit(problem.initial, sums(problem, 1, 1), 0, []),
        lambda: empty.score(problem.initial, problem.x, problem.y, 1),
        lambda: empty.predict(problem.initial, problem.x),
    ):
        with pytest.raises(InvalidRequest, match="this engine has no"):
            call()


def test_nothing_falls_back() -> None:
    engine.configure()
    assert engine.find_device("cpu").platform == "cpu"
    with pytest.raises(Unavailable, match="'cuda' is not available"):
        engine.find_device("cuda")
    with pytest.raises(Unavailable, match="ordinal 1 was asked for"):
        engine.find_device("cpu", 1)
