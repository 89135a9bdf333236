"""The fitted parameters against a plain loop of JAX and optax that knows nothing of blocks, trees or engines."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray

import phalanx
from phalanx_proto.experiment import DType, Rows
from phalanx_proto.order import row_order

EPOCHS, BATCH, HIDDEN, CLASSES, INPUTS = 3, 48, 7, 3, 5
TOLERANCE = {"float64": 1e-9, "float32": 1e-3}
OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.05),
    "momentum": lambda: optax.sgd(0.05, momentum=0.9),
    "adam": lambda: optax.adam(0.05),
}


@pytest.fixture(scope="module")
def rows() -> Rows:
    """500 rows, so that batches of 48 leave one of 20; far from standardized."""
    drawn = phalanx.datasets.synthetic(500, INPUTS, CLASSES, seed=4)
    return phalanx.Dataset.from_arrays(drawn.features * [1, 10, 100, 0.1, 5] + 3, drawn.targets).rows("train")


def outputs(parameters: Any, x: Any) -> Any:
    """One hidden layer of tanh; the parameters are flat: weights row-major, then bias, layer after layer."""
    sizes = np.cumsum([INPUTS * HIDDEN, HIDDEN, HIDDEN * CLASSES])
    first, bias, second, last = jnp.split(parameters, sizes)
    hidden = jnp.tanh(x @ first.reshape(INPUTS, HIDDEN) + bias)
    return hidden @ second.reshape(HIDDEN, CLASSES) + last


def mean_loss(parameters: Any, x: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs(parameters, x), y).mean()


def plain_fit(initial: NDArray[Any], rows: Rows, optimizer: optax.GradientTransformation, dtype: str) -> NDArray[Any]:
    scaled = (rows.x - rows.x.mean(axis=0)) / rows.x.std(axis=0)
    x, y = scaled.astype(dtype), rows.y
    parameters = jnp.asarray(initial, dtype)
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        changes, state = optimizer.update(jax.grad(mean_loss)(parameters, x, y), state, parameters)
        return optax.apply_updates(parameters, changes), state

    for epoch in range(EPOCHS):
        order = row_order(11, epoch, len(x))
        for start in range(0, len(x), BATCH):
            batch = order[start : start + BATCH]
            parameters, state = step(parameters, state, x[batch], y[batch])
    return np.asarray(parameters)


@pytest.fixture(scope="module", autouse=True)
def warm(rows: Rows) -> Any:
    """One engine for all tests of this module."""
    fit(rows, "sgd", "float64")
    yield
    phalanx.shutdown()


def fit(rows: Rows, optimizer: str, dtype: DType) -> tuple[NDArray[Any], phalanx.Fitted]:
    network = phalanx.mlp(INPUTS, [HIDDEN], CLASSES, seed=2)
    model = phalanx.classifier(network, standardize=True, optimizer=optimizer)  # type: ignore[arg-type]
    config = phalanx.training(epochs=EPOCHS, batch=BATCH, rate=0.05, seed=11)
    fitted = phalanx.fit(model, rows, config, execution=phalanx.local(1, dtype=dtype))
    return network.parameters, fitted


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_a_plain_loop_finds_the_same_parameters(rows: Rows, optimizer: str, dtype: DType) -> None:
    initial, fitted = fit(rows, optimizer, dtype)
    expected = plain_fit(initial, rows, OPTIMIZERS[optimizer](), dtype)
    assert fitted.parameters.dtype == dtype
    assert np.abs(fitted.parameters - expected).max() < TOLERANCE[dtype]
    assert np.abs(fitted.parameters - initial).max() > 0.1


def test_scores_and_predictions_are_those_of_the_plain_model(rows: Rows) -> None:
    _, fitted = fit(rows, "adam", "float64")
    scaled = (rows.x - rows.x.mean(axis=0)) / rows.x.std(axis=0)
    logits = outputs(fitted.parameters, scaled)
    score = fitted.evaluate(rows)
    assert score.loss == pytest.approx(float(mean_loss(fitted.parameters, scaled, rows.y)), rel=1e-12)
    assert score.accuracy == pytest.approx(float((logits.argmax(axis=1) == rows.y).mean()))
    assert (fitted.predict(rows.x) == np.asarray(logits.argmax(axis=1))).all()
    assert np.abs(fitted.outputs(rows.x) - np.asarray(jax.nn.softmax(logits))).max() < 1e-12
