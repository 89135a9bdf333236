import dataclasses
from typing import Any

import numpy as np
import pytest

from phalanx.datasets import iris
from phalanx.training import training
from phalanx_proto.errors import InvalidExperiment, ProtectedRole
from phalanx_proto.experiment import Role


def test_the_example() -> None:
    parts = iris().partition(validation=0.2, test=0.2, seed=42)
    config = training(epochs=40, batch=32, rate=0.01, seed=42, validation=parts.validation)
    assert (config.epochs, config.batch, config.rate, config.seed) == (40, 32, 0.01, 42)
    assert (config.block, config.shuffle, config.keep_best) == ("auto", True, False)
    assert config.validation is parts.validation
    assert "validation=<30 rows>" in repr(config)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.epochs = 1  # type: ignore[misc]


def test_numpy_numbers_become_python_numbers() -> None:
    numbers: dict[str, Any] = {
        "epochs": np.int64(2),
        "batch": np.int32(8),
        "rate": np.float64(0.5),
        "block": np.int64(4),
    }
    config = training(**numbers)
    assert (type(config.epochs), type(config.batch), type(config.rate), type(config.block)) == (int, int, float, int)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"batch": 1.5}, "batch must be a whole number"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"rate": float("nan")}, "rate must be finite"),
        ({"rate": "0.1"}, "rate must be a number"),
        ({"seed": -1}, "seed must be from 0"),
        ({"block": 33}, r"block must be at most batch \(32\), not 33"),
        ({"block": 0}, "block must be at least 1"),
        ({"block": "large"}, 'block must be "auto"'),
        ({"shuffle": 1}, "shuffle must be True or False"),
        ({"keep_best": True}, "keep_best needs validation rows"),
    ],
)
def test_each_fault_alone(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiment, match=message) as raised:
        training(**{"epochs": 1, "batch": 32, "rate": 0.1, **wrong})
    assert len(raised.value.problems) == 1


def test_all_faults_at_once() -> None:
    block: Any = "none"
    with pytest.raises(InvalidExperiment) as raised:
        training(epochs=0, batch=0, rate=-1, seed=-1, block=block, keep_best=True)
    assert len(raised.value.problems) == 6


def test_a_wrong_batch_does_not_blame_the_block() -> None:
    with pytest.raises(InvalidExperiment) as raised:
        training(epochs=1, batch=0, rate=0.1, block=8)
    assert raised.value.problems == ["batch must be at least 1, not 0"]


@pytest.mark.parametrize("role", ["train", "test", "all"])
def test_rows_of_another_role_do_not_validate(role: Role) -> None:
    with pytest.raises(ProtectedRole, match=f"these have the role {role}"):
        training(epochs=1, batch=32, rate=0.1, validation=iris().rows(role=role))


def test_what_has_no_role_does_not_validate() -> None:
    data: Any = iris()
    with pytest.raises(ProtectedRole, match="not a Dataset"):
        training(epochs=1, batch=32, rate=0.1, validation=data)


def test_validation_rows_that_came_split_are_taken() -> None:
    rows = iris().rows(role="validation")
    assert training(epochs=1, batch=32, rate=0.1, validation=rows, keep_best=True).keep_best
