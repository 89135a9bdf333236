"""A fit that is saved between two updates and restored elsewhere ends in the bits of the one that was not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phalanx_proto import tensors
from phalanx_proto.errors import InvalidRequest
from phalanx_proto.experiment import DType, OptimizerSpec
from phalanx_worker.arena import Arena
from phalanx_worker.fit import CanonicalFit
from phalanx_worker.opening import FitOpening
from tests.worker import builders
from tests.worker.builders import Problem

Saved = tuple[dict[str, NDArray[Any]], int, tuple[float, int] | None]
LINES = list[dict[str, Any]]


def make(dtype: DType, optimizer: OptimizerSpec) -> Problem:
    """Two updates an epoch, six in all."""
    return builders.make_problem(builders.make_spec(dtype, optimizer=optimizer), rows=50, batch=26, epochs=3)


PROBLEMS = [
    make("float32", builders.ADAM), make("float64", OptimizerSpec(name="momentum", rate=0.1)), make("float64", builders.SGD),
]  # fmt: skip


@pytest.fixture(params=PROBLEMS, ids=lambda problem: f"{problem.spec.dtype}-{problem.spec.optimizer.name}")
def problem(request: pytest.FixtureRequest) -> Problem:
    found: Problem = request.param
    return found


@contextmanager
def canonical(problem: Problem, weights: list[float]) -> Iterator[CanonicalFit]:
    x, y = np.zeros((24, 5), problem.spec.dtype), np.zeros(24, np.int32)
    x[:21], y[:21] = problem.x[:21], problem.y[:21]
    with builders.gang(problem, len(weights), remote=16) as leader:
        yield builders.canonical(leader, problem, weights, validation=(x, y, 21), keep_best=True)


def layout_of(problem: Problem, own: CanonicalFit) -> Any:
    return FitOpening(
        sizes=problem.sizes, schedule=problem.schedule, artifacts={}, slots=1, weights=(1.0,), held=1,
        state=own.state_sizes, keep_best=True,
    ).saved()  # fmt: skip


def saved(problem: Problem, own: CanonicalFit) -> Saved:
    """Through an arena, as the host does it; what is left of it are copies."""
    arena = Arena.create(layout_of(problem, own))
    own.save(arena)
    found = {name: np.array(arena[name]) for name in arena.layout}
    arena.close()
    return found, own.update, own.best


def ended(problem: Problem, own: CanonicalFit, epochs: LINES) -> tuple[Any, ...]:
    last, _, best = saved(problem, own)
    bits = {name: tensors.digest(array) for name, array in last.items()}
    return bits, best, epochs, own.update, tensors.digest(own.parameters)


def whole(problem: Problem) -> tuple[Any, ...]:
    with canonical(problem, [1.0]) as own:
        return ended(problem, own, own.stretch(6, 1e9)["epochs"])


@pytest.mark.parametrize("weights", [[1.0], [1.0, 3.0]], ids=["one slot", "two slots"])
def test_restored_at_any_update_it_ends_in_the_same_bits(problem: Problem, weights: list[float]) -> None:
    expected = whole(problem)
    with canonical(problem, [1.0]) as first, canonical(problem, weights) as second:
        epochs: LINES = []
        for update in range(7):
            if update:
                epochs += first.stretch(update, 1e9)["epochs"]
            second.canaries()
            second.restore(*saved(problem, first))
            assert second.update == update
            published = second.leader.arena["parameters"][update & 1][: problem.sizes.parameters]
            assert published.tobytes() == np.asarray(second._parameters).tobytes()
            rest = second.stretch(6, 1e9)["epochs"]
            assert ended(problem, second, epochs + rest) == expected, update


def test_a_group_goes_on_from_a_stretch_and_back(problem: Problem) -> None:
    expected = whole(problem)
    epochs: LINES = []
    with canonical(problem, [1.0]) as own:
        epochs += own.stretch(3, 1e9)["epochs"]
        middle = saved(problem, own)
    with canonical(problem, [1.0]) as own:
        own.restore(*middle)
        for update in (3, 4):
            own.part([(0, problem.schedule.blocks_of(update))])
            if update == 4:  # the request comes after the part of the next update has begun
                middle = saved(problem, own)
            answer = own.commit([])
            epochs += answer["epochs"] if update == 3 else []
    with canonical(problem, [2.0, 1.0]) as own:
        own.restore(*middle)
        epochs += own.stretch(6, 1e9)["epochs"]
        assert ended(problem, own, epochs) == expected


def test_what_was_restored_does_not_hang_on_the_memory_it_came_from(problem: Problem) -> None:
    with canonical(problem, [1.0]) as own:
        own.stretch(3, 1e9)
        middle, update, best = saved(problem, own)
    with canonical(problem, [1.0]) as own:
        own.restore(middle, update, best)
        for array in middle.values():
            array[:] = 7
        own.stretch(6, 1e9)
        assert tensors.digest(own.parameters) == whole(problem)[4]


@pytest.mark.parametrize("update", [-1, 7])
def test_an_update_that_the_fit_does_not_have_is_refused(update: int) -> None:
    problem = PROBLEMS[0]
    with canonical(problem, [1.0]) as own:
        kept = own.parameters.copy()
        arrays, _, _ = saved(problem, own)
        with pytest.raises(InvalidRequest, match=f"a fit of 6 updates cannot go on at update {update}"):
            own.restore({**arrays, "parameters": arrays["parameters"] + 1}, update, None)
        assert own.parameters.tobytes() == kept.tobytes()
