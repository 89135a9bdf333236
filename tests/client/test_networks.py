import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from phalanx.networks import mlp, sequential
from phalanx_proto import philox
from phalanx_proto.errors import InvalidExperiment, InvalidRequest
from phalanx_proto.experiment import Dense, ModelSpec


def test_layout_of_the_parameters() -> None:
    network = mlp(4, [8], 3, seed=42)
    assert network.spec == ModelSpec(layers=(Dense(inputs=4, outputs=8), "tanh", Dense(inputs=8, outputs=3)))
    assert network.parameters.shape == (network.spec.parameters,) == (4 * 8 + 8 + 8 * 3 + 3,)
    assert network.parameters.dtype == np.float64
    assert not network.parameters.flags.writeable
    first, bias, second, last = np.split(network.parameters, [32, 40, 64])
    assert not bias.any()
    assert not last.any()
    for lane, (values, fan) in enumerate([(first, 12), (second, 11)]):
        drawn = philox.uniform(42, philox.STREAM_INITIAL, len(values), lane=lane)
        np.testing.assert_array_equal(values, (2 * drawn - 1) * math.sqrt(6 / fan))


def test_the_benchmark_network_has_16836_parameters() -> None:
    assert len(mlp(64, [128, 64], 4, seed=1).parameters) == 16_836


def test_initial_values_are_spread_over_their_range() -> None:
    values = sequential(5).dense(200, 100, initialization="he").parameters[:20_000]
    limit = math.sqrt(6 / 200)
    assert -limit <= values.min() < -0.999 * limit
    assert 0.999 * limit < values.max() < limit
    assert abs(values.mean()) < limit / 100


def test_the_seed_decides() -> None:
    assert np.array_equal(mlp(4, [8], 3, seed=1).parameters, mlp(4, [8], 3, seed=1).parameters)
    assert not np.array_equal(mlp(4, [8], 3, seed=1).parameters, mlp(4, [8], 3, seed=2).parameters)


def test_sequential_builds_what_mlp_builds() -> None:
    built = sequential(42).dense(4, 8).relu().dense(8, 3)
    same = mlp(4, np.array([8]), 3, 42, activation="relu")  # type: ignore[arg-type]
    assert built.spec == same.spec
    np.testing.assert_array_equal(built.parameters, same.parameters)


def test_chaining_leaves_the_shorter_network_alone() -> None:
    base = sequential(1).dense(2, 2)
    longer = base.tanh().dense(2, 1).sigmoid()
    assert base.spec.layers == (Dense(inputs=2, outputs=2),)
    assert longer.spec.layers[1::2] == ("tanh", "sigmoid")
    assert len(base.parameters) == 6
    with pytest.raises(dataclasses.FrozenInstanceError):
        base.seed = 2  # type: ignore[misc]


def test_given_values_are_copied() -> None:
    weights = np.arange(6.0).reshape(2, 3)
    network = sequential(1).dense(2, 3, weights=weights, bias=[7, 8, 9])
    weights[:] = -1
    assert network.parameters.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert not sequential(1).dense(2, 3, initialization="zeros").parameters.any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"weights": np.zeros((3, 2))}, r"weights of layer 1 must have the shape \(2, 3\), not \(3, 2\)"),
        ({"weights": [[0, 0, np.nan], [0, 0, 0]]}, "weights of layer 1 must be finite"),
        ({"weights": [[1], [1, 2]]}, "weights of layer 1 are not an array"),
        ({"weights": [["a"] * 3] * 2}, "weights of layer 1 must be real numbers"),
        ({"bias": [1, 2]}, r"bias of layer 1 must have the shape \(3,\), not \(2,\)"),
        ({"initialization": "random"}, "must be one of xavier, he, zeros"),
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        sequential(1).dense(2, 3, **wrong)


def test_a_wrong_width_names_both_layers() -> None:
    with pytest.raises(InvalidRequest) as raised:
        sequential(1).dense(4, 8).tanh().dense(16, 3)
    assert str(raised.value) == "layer 3, dense(16, 3), takes 16 values, but layer 1, dense(4, 8), gives 8"


def test_too_large_a_network_is_refused_before_it_is_made() -> None:
    with pytest.raises(InvalidRequest, match="parameters: at most"):
        sequential(1).dense(1 << 20, 1 << 20)


def test_an_activation_cannot_come_first() -> None:
    with pytest.raises(InvalidRequest, match="tanh cannot be the first layer"):
        sequential(1).tanh()


def test_mlp_lists_all_faults() -> None:
    wrong: Any = "swish"
    with pytest.raises(InvalidExperiment) as raised:
        mlp(0, [8, True], 0, seed=-1, activation=wrong)
    assert len(raised.value.problems) == 5
    assert raised.value.problems[-1] == "activation must be one of tanh, relu, sigmoid; not 'swish'"
    hidden: Any = 8
    with pytest.raises(InvalidExperiment, match=r"hidden must be a list of widths such as \[8\]"):
        mlp(4, hidden, 3, seed=1)


def test_repr_tells_the_layers() -> None:
    assert repr(mlp(4, [8], 3, seed=42)) == "Network(dense(4, 8) -> tanh -> dense(8, 3); 67 parameters, seed 42)"
    assert repr(sequential(1)) == "Network(no layers; 0 parameters, seed 1)"
