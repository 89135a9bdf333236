"""One experiment, one digest: whatever the number of members, their weights and where they run.

A column is an experiment (batch and dtype), a row a group. Each group is started once and stays warm for all columns; the
weights of its members change from fit to fit. What is expected is computed first, by one engine of this machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phalanx
from phalanx.results import Fitted
from phalanx_proto.errors import InvalidExperiment
from phalanx_proto.execution import Execution
from phalanx_proto.experiment import DType, Rows
from tests.system.groups import classifier, write_group

MANY, FEW = 2000, 60
HITS = 785_856
"""Of a million samples of seed 42 (DESIGN §3.10)."""


@dataclass(frozen=True)
class Column:
    """One experiment of the table."""

    batch: int
    dtype: DType

    @property
    def rows(self) -> int:
        """A batch of one takes so many updates that it gets fewer rows."""
        return FEW if self.batch == 1 else MANY


F32: DType = "float32"
F64: DType = "float64"
QUICK_COLUMNS = [Column(32, F64), Column(700, F32), Column(1, F64), Column(1536, F32)]
SLOW_COLUMNS = [Column(32, F32), Column(700, F64), Column(1, F32), Column(1536, F64)]
COLUMNS = pytest.mark.parametrize(
    "column",
    [*QUICK_COLUMNS, *(pytest.param(column, marks=pytest.mark.slow) for column in SLOW_COLUMNS)],
    ids=lambda column: f"{column.batch}-{column.dtype}",
)


@dataclass(frozen=True)
class Row:
    """One group: the transports of its members, and the weights they take in turn."""

    transports: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]

    @property
    def name(self) -> str:
        """Short: L for local, S for socket."""
        return "".join(transport[0].upper() for transport in self.transports)


L, S = "local", "socket"
ROWS = [
    Row((L, S), ((1, 1), (1, 7))),
    Row((S, S, L), ((3, 1, 2),)),
    Row((S,), ((1,),)),
    Row((S, S), ((1, 1), (1, 7))),
    Row((L, L), ((1, 1), (7, 1))),
    Row((S, L, S), ((1, 1, 1), (3, 1, 2))),
    Row((L, S, L, S, S), ((1, 1, 1, 1, 1), (3, 1, 2, 1, 7))),
    Row((S, S, S, S, S), ((5, 4, 3, 2, 1),)),
]
QUICK_ROWS = 2
"""So many are in every run; the others are slow."""


@dataclass
class Group:
    """A row whose members are there."""

    row: Row
    folder: Path

    def executions(self, dtype: DType = "float64", chunk: int | None = None) -> Iterator[Execution]:
        """One for each set of weights."""
        for weights in self.row.weights:
            places = list(zip(self.row.transports, weights, strict=True))
            yield write_group(self.folder, places, precision=dtype, chunk=chunk)


def fit(column: Column, train: Rows, execution: Execution) -> Fitted:
    config = phalanx.training(epochs=2, batch=column.batch, rate=0.01, seed=3)
    return phalanx.fit(classifier(), train, config, execution=execution, reproducible="bitwise")


def regress(execution: Execution) -> Fitted:
    return phalanx.regression(samples=1000, steps=5, seed=9, execution=execution)


@pytest.fixture(scope="module")
def data() -> dict[int, Rows]:
    return {rows: phalanx.datasets.synthetic(rows, 8, 3, seed=1).rows("train") for rows in (MANY, FEW)}


def asked_for(request: pytest.FixtureRequest, name: str) -> list[Any]:
    """The values of a parameter in the tests of this run, each once."""
    parameters = [getattr(item, "callspec", None) for item in request.session.items]
    return list(dict.fromkeys(p.params[name] for p in parameters if p is not None and name in p.params))


@pytest.fixture(scope="module")
def expected(request: pytest.FixtureRequest, data: dict[int, Rows]) -> dict[object, str]:
    """The digests of one local engine: by column, and the regression's by dtype."""
    found: dict[object, str] = {}
    for column in asked_for(request, "column"):
        found[column] = fit(column, data[column.rows], phalanx.local(1, dtype=column.dtype)).digest
    for dtype in asked_for(request, "regression"):
        found[dtype] = regress(phalanx.local(1, dtype=dtype)).digest
    return found


@pytest.fixture(
    scope="module",
    params=[pytest.param(row, marks=[] if place < QUICK_ROWS else pytest.mark.slow) for place, row in enumerate(ROWS)],
    ids=lambda row: row.name,
)
def group(
    request: pytest.FixtureRequest, expected: dict[object, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Group]:
    """A group that is started and warm."""
    started = Group(request.param, tmp_path_factory.mktemp("groups"))
    execution = next(started.executions())
    phalanx.fit(
        classifier(2, 2), phalanx.datasets.synthetic(200, 2, 2, seed=1).rows("train"),
        phalanx.training(epochs=1, batch=200, rate=0.1), execution=execution,
    )  # fmt: skip
    yield started
    phalanx.shutdown()


@COLUMNS
def test_every_group_gives_the_digest_of_its_column(
    group: Group, data: dict[int, Rows], expected: dict[object, str], column: Column
) -> None:
    for execution in group.executions(column.dtype):
        fitted = fit(column, data[column.rows], execution)
        assert fitted.digest == expected[column]
        assert fitted.level == "bitwise"
        assert sum(member.rows or 0 for member in fitted.members) == 2 * column.rows
        assert all(member.rows and member.updates for member in fitted.members)


@pytest.mark.parametrize("regression", [F64, pytest.param(F32, marks=pytest.mark.slow)])
def test_the_regression_does_not_depend_on_the_group(group: Group, expected: dict[object, str], regression: DType) -> None:
    for execution in group.executions(regression):
        assert regress(execution).digest == expected[regression]


@pytest.mark.parametrize("chunk", [1_000, 65_536, 999_983])
def test_the_hits_do_not_depend_on_group_or_chunk(group: Group, chunk: int) -> None:
    execution = next(group.executions(chunk=chunk))
    members = len(group.row.transports)
    if chunk == 999_983 and members > 2:
        with pytest.raises(InvalidExperiment, match=f"are 2 chunks for {members} members"):
            phalanx.monte_carlo(samples=10**6, seed=42, execution=execution)
        return
    found = phalanx.monte_carlo(samples=10**6, seed=42, execution=execution)
    assert found.hits == HITS
    assert sum(member.samples or 0 for member in found.members) == 10**6
    assert all(member.samples for member in found.members)


def test_a_mean_over_uneven_members_is_the_mean_of_the_rows(group: Group) -> None:
    """32 rows with the gradient 2 and 224 with 4: the means of two members would average to 3, the rows' is 3.75."""
    x = np.concatenate([np.full((32, 1), 2.0), np.full((224, 1), 4.0)])
    rows = phalanx.Dataset.from_arrays(x, np.full(256, -0.5)).rows("train")
    network = phalanx.sequential(0).dense(1, 1, weights=[[0.0]], bias=[0.0])
    config = phalanx.training(epochs=1, batch=256, rate=1.0, block=32, shuffle=False)
    for execution in group.executions():
        fitted = phalanx.fit(phalanx.regressor(network, optimizer="sgd"), rows, config, execution=execution)
        assert fitted.parameters.tolist() == [-3.75, -1.0]


def test_different_experiments_have_different_digests(expected: dict[object, str]) -> None:
    assert len(set(expected.values())) == len(expected)
