import dataclasses
from typing import Any

import pytest

from phalanx.models import classifier, mlp, regressor, sequential
from phalanx_proto.errors import InvalidExperiment
from phalanx_proto.experiment import OptimizerSpec


def test_the_example() -> None:
    model = classifier(mlp(4, [8], 3, seed=42), standardize=True, optimizer="adam")
    assert (model.loss, model.float_targets, model.standardize) == ("cross_entropy", False, True)
    assert model.optimizer_spec(0.01) == OptimizerSpec(name="adam", rate=0.01)
    assert "classifier" in repr(model)
    assert "adam, beta1=0.9" in repr(model)
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.loss = "mse"  # type: ignore[misc]


def test_constants_reach_the_optimizer() -> None:
    model = classifier(mlp(4, [8], 3, seed=1), optimizer="momentum", momentum=0.5, clip=1)
    assert model.optimizer_spec(0.1) == OptimizerSpec(name="momentum", rate=0.1, momentum=0.5, clip=1.0)
    assert "momentum=0.5, clip=1.0" in repr(model)


def test_a_regressor_takes_float_targets() -> None:
    model = regressor(mlp(4, [], 1, seed=1), optimizer="sgd", standardize=True)
    assert (model.loss, model.float_targets, model.standardize) == ("mse", True, True)


def test_logistic_takes_one_output() -> None:
    assert classifier(mlp(8, [], 1, seed=1), loss="logistic").loss == "logistic"
    with pytest.raises(InvalidExperiment, match="takes a network with 1 output, not 2"):
        classifier(mlp(8, [], 2, seed=1), loss="logistic")


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_other_losses_take_an_output_a_class(loss: Any) -> None:
    assert classifier(mlp(8, [], 2, seed=1), loss=loss).loss == loss
    with pytest.raises(InvalidExperiment, match="one output a class, at least 2, not 1"):
        classifier(mlp(8, [], 1, seed=1), loss=loss)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of sgd, momentum, adam; not 'lion'"),
        ({"loss": "hinge"}, "loss must be one of cross_entropy, mse, logistic; not 'hinge'"),
        ({"standardize": 1}, "standardize must be True or False"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"beta1": -0.1}, "beta1 must be at least 0"),
        ({"beta2": True}, "beta2 must be a number"),
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"clip": 0}, "clip must be above 0"),
        ({"clip": float("inf")}, "clip must be finite"),
    ],
)
def test_each_fault_alone(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiment, match=message) as raised:
        classifier(mlp(4, [8], 3, seed=1), **wrong)
    assert len(raised.value.problems) == 1


def test_all_faults_at_once() -> None:
    wrong: Any = "x"
    with pytest.raises(InvalidExperiment) as raised:
        classifier(sequential(1), loss=wrong, optimizer=wrong, momentum=2.0, clip=-1.0)
    assert len(raised.value.problems) == 5


def test_a_network_is_needed() -> None:
    network: Any = [4, 8, 3]
    with pytest.raises(InvalidExperiment, match=r"made by phalanx\.mlp or phalanx\.sequential, not a list"):
        classifier(network)
