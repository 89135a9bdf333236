"""What the calls refuse before anything starts."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx_proto.errors import InvalidExperiment, InvalidRequest, ProtectedRole
from phalanx_proto.experiment import Rows

MODEL = phalanx.classifier(phalanx.mlp(4, [8], 3, seed=42))
PARTS = phalanx.datasets.iris().partition()
CONFIG = phalanx.training(epochs=1, batch=32, rate=0.1)


def test_importing_loads_neither_the_coordinator_nor_the_command_line() -> None:
    code = "import sys, phalanx; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert "phalanx" in loaded
    assert {"typer", "rich", "click", "grpc", "jax", "psutil", "phalanx_coordinator", "phalanx_worker"}.isdisjoint(loaded)


@pytest.mark.parametrize(
    ("values", "named", "kind", "message"),
    [
        ((MODEL, phalanx.datasets.iris(), CONFIG), {}, ProtectedRole, r"train takes rows of a partition, such as parts\.train"),
        ((MODEL, PARTS.train, CONFIG), {"test": phalanx.datasets.iris()}, ProtectedRole, r"such as parts\.test"),
        ((MODEL.network, PARTS.train, CONFIG), {}, InvalidRequest, r"model must be made by phalanx\.classifier"),
        ((MODEL, PARTS.train, {"epochs": 1}), {}, InvalidRequest, r"config must be made by phalanx\.training"),
        ((MODEL, PARTS.train, CONFIG), {"execution": "local"}, InvalidRequest, r"execution must be made by phalanx\.local"),
        ((MODEL, PARTS.train, CONFIG), {"reproducible": "yes"}, InvalidExperiment, "reproducible must be one of any, bitwise"),
        ((MODEL, PARTS.train, CONFIG), {"on_loss": "wait"}, InvalidExperiment, "on_loss must be one of abort, rebalance"),
        (
            (MODEL, PARTS.train, CONFIG),
            {"checkpoint_every": 0},
            InvalidExperiment,
            "checkpoint_every must be at least 1, not 0",
        ),
    ],
)
def test_a_fit_takes_the_right_kinds(
    values: tuple[Any, ...], named: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        phalanx.fit(*values, **named)


@pytest.mark.parametrize(
    ("role", "rows"), [("train", PARTS.test), ("train", PARTS.validation), ("test", PARTS.train), ("test", PARTS.validation)]
)
def test_rows_of_another_role_are_refused(role: str, rows: Rows) -> None:
    train, test = (rows, None) if role == "train" else (PARTS.train, rows)
    with pytest.raises(ProtectedRole, match=f"{rows.role} rows cannot be"):
        phalanx.fit(MODEL, train, CONFIG, test=test)


def test_test_rows_are_checked_with_the_others() -> None:
    other = phalanx.datasets.digits().partition()
    with pytest.raises(InvalidExperiment) as caught:
        phalanx.fit(MODEL, PARTS.train, CONFIG, test=other.test)
    assert len(caught.value.problems) == 3  # width, labels, another dataset


def test_a_simulation_is_checked_at_once() -> None:
    with pytest.raises(InvalidExperiment) as caught:
        phalanx.monte_carlo(samples=0, seed=-1, on_loss="wait")  # type: ignore[arg-type]
    assert caught.value.problems == [
        "samples must be from 1 to 1,000,000,000,000, not 0", "seed must be from 0 to 18,446,744,073,709,551,615, not -1",
        "on_loss must be one of abort, rebalance; not 'wait'",
    ]  # fmt: skip


def test_a_regression_is_checked_at_once() -> None:
    with pytest.raises(InvalidExperiment) as caught:
        phalanx.regression(samples=0, steps=0, rate=0.0)
    assert [problem.split()[0] for problem in caught.value.problems] == ["samples", "steps", "rate"]


def test_an_output_directory_must_be_new(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with pytest.raises(InvalidRequest, match="is there already; name a new one"):
        phalanx.monte_carlo(samples=10, output=tmp_path)
