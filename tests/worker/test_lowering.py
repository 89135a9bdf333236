import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from phalanx_proto.errors import EngineFailed
from phalanx_proto.experiment import Activation, Dense, DType, Loss, ModelSpec, OptimizerSpec, ProgramSpec
from phalanx_proto.program_rules import inspect_module
from phalanx_proto.programs import load, signature_of
from phalanx_worker import lowering

ROWS, BLOCK, INPUTS = 53, 16, 5
TOLERANCE = {"float32": 1e-6, "float64": 1e-13}
RULES = {
    "sgd": OptimizerSpec(name="sgd", rate=0.05),
    "momentum": OptimizerSpec(name="momentum", rate=0.05, momentum=0.8),
    "adam": OptimizerSpec(name="adam", rate=0.003, beta1=0.85, beta2=0.99),
}
KEY = np.zeros(4, np.uint32)


def make_spec(
    *, loss: Loss = "cross_entropy", dtype: DType = "float64", float_targets: bool = False,
    optimizer: OptimizerSpec = RULES["sgd"], activation: Activation = "tanh", outputs: int | None = None,
) -> ProgramSpec:  # fmt: skip
    outputs = outputs or (1 if loss == "logistic" else 3)
    layers = (Dense(inputs=INPUTS, outputs=7), activation, Dense(inputs=7, outputs=outputs))
    return ProgramSpec(
        model=ModelSpec(layers=layers), loss=loss, float_targets=float_targets, optimizer=optimizer, dtype=dtype,
        block=BLOCK, score_block=ROWS,
    )  # fmt: skip


@functools.cache
def calls(spec: ProgramSpec) -> dict[str, Callable[..., Any]]:
    return {name: jax.jit(load(artifact.data).call) for name, artifact in lowering.lower(spec).items()}


def make_batch(spec: ProgramSpec) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(7)
    parameters = random.normal(size=spec.model.parameters).astype(spec.dtype)
    x = random.normal(size=(ROWS, INPUTS)).astype(spec.dtype)
    if spec.float_targets:
        return parameters, x, random.normal(size=(ROWS, spec.model.outputs)).astype(spec.dtype)
    classes = 2 if spec.loss == "logistic" else spec.model.outputs
    return parameters, x, random.integers(0, classes, ROWS).astype(np.int32)


def reference_outputs(spec: ProgramSpec, parameters: Any, x: Any) -> Any:
    """The model written a second time, plainly."""
    activations = {"tanh": jnp.tanh, "relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid}
    start = 0
    for layer in spec.model.layers:
        if isinstance(layer, Dense):
            size = layer.inputs * layer.outputs
            weights = parameters[start : start + size].reshape(layer.inputs, layer.outputs)
            x = x @ weights + parameters[start + size : start + size + layer.outputs]
            start += size + layer.outputs
        else:
            x = activations[layer](x)
    return x


def reference_loss(spec: ProgramSpec, parameters: Any, x: Any, y: Any) -> Any:
    z = reference_outputs(spec, parameters, x)
    if spec.loss == "cross_entropy":
        return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(z, y))
    if spec.loss == "logistic":
        return jnp.sum(optax.sigmoid_binary_cross_entropy(z[:, 0], y))
    targets = y if spec.float_targets else jax.nn.one_hot(y, z.shape[1], dtype=z.dtype)
    return jnp.sum(jnp.mean((z - targets) ** 2, axis=1))


@functools.cache
def reference_gradient(spec: ProgramSpec) -> Callable[..., Any]:
    return jax.jit(jax.value_and_grad(lambda parameters, x, y: reference_loss(spec, parameters, x, y)))


def blocks(x: Any, y: Any, padding: float, label: int) -> list[tuple[Any, Any, Any]]:
    """The batch in blocks; the last is filled up with rows of weight 0 that hold rubbish."""
    found = []
    for start in range(0, ROWS, BLOCK):
        rows = min(BLOCK, ROWS - start)
        block_x = np.full((BLOCK, *x.shape[1:]), padding, x.dtype)
        block_y = np.full((BLOCK, *y.shape[1:]), label if y.ndim == 1 else padding, y.dtype)
        block_x[:rows], block_y[:rows] = x[start : start + rows], y[start : start + rows]
        found.append((block_x, block_y, (np.arange(BLOCK) < rows).astype(x.dtype)))
    return found


def difference(found: Any, wanted: Any) -> float:
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


CASES = [("cross_entropy", False), ("mse", False), ("mse", True), ("logistic", False)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("loss", "float_targets"), CASES)
def test_block_sums_are_the_gradient_of_the_whole_batch(loss: Loss, float_targets: bool, dtype: DType) -> None:
    spec = make_spec(loss=loss, dtype=dtype, float_targets=float_targets)
    program = calls(spec)["gradient"]
    parameters, x, y = make_batch(spec)
    results = [program(parameters, *block, KEY) for block in blocks(x, y, padding=1e30, label=-7)]
    gradient, total, weight, metrics = (sum(np.asarray(result[part], np.float64) for result in results) for part in range(4))
    wanted_total, wanted = reference_gradient(spec)(parameters, x, y)
    assert difference(gradient, wanted) <= TOLERANCE[dtype]
    assert difference(total, wanted_total) <= TOLERANCE[dtype]
    assert weight == ROWS
    assert np.shape(metrics) == (len(spec.metrics),)


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid"])
def test_activations_have_the_usual_derivative(activation: Activation) -> None:
    spec = make_spec(activation=activation)
    parameters, x, y = make_batch(spec)
    block = blocks(x, y, padding=0, label=0)[0]
    found = calls(spec)["gradient"](parameters, *block, KEY)[0]
    _, wanted = reference_gradient(spec)(parameters, block[0], block[1])
    assert difference(found, wanted) <= TOLERANCE["float64"]


@pytest.mark.parametrize(("loss", "float_targets"), CASES)
def test_padding_adds_exactly_nothing(loss: Loss, float_targets: bool) -> None:
    spec = make_spec(loss=loss, float_targets=float_targets, dtype="float32")
    program = calls(spec)["gradient"]
    parameters, x, y = make_batch(spec)
    plain, rubbish = (
        program(parameters, *blocks(x, y, padding=padding, label=label)[-1], KEY)
        for padding, label in ((0.0, 0), (3e38, 2**31 - 1))
    )
    for one, other in zip(plain, rubbish, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("loss", "float_targets"), CASES)
def test_an_empty_block_is_zero(loss: Loss, float_targets: bool) -> None:
    spec = make_spec(loss=loss, float_targets=float_targets, dtype="float32")
    parameters, x, y = make_batch(spec)
    results = calls(spec)["gradient"](parameters, x[:BLOCK], y[:BLOCK], np.zeros(BLOCK, np.float32), KEY)
    assert all(not np.any(result) for result in results)


def test_weights_multiply_the_losses_of_their_rows() -> None:
    spec = make_spec()
    program = calls(spec)["gradient"]
    parameters, x, y = make_batch(spec)
    weight = np.zeros(BLOCK)
    weight[[3, 5]] = 2.0, 0.5
    gradient, total, weights, _ = program(parameters, x[:BLOCK], y[:BLOCK], weight, KEY)
    rows = [reference_gradient(spec)(parameters, x[i : i + 1], y[i : i + 1]) for i in (3, 5)]
    assert weights == 2.5
    assert difference(total, 2 * rows[0][0] + rows[1][0] / 2) <= 1e-13
    assert difference(gradient, 2 * rows[0][1] + rows[1][1] / 2) <= 1e-13


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic"])
def test_large_outputs_give_finite_losses(loss: Loss) -> None:
    spec = make_spec(loss=loss, dtype="float32")
    parameters, x, y = make_batch(spec)
    gradient, total, _, _ = calls(spec)["gradient"](parameters * 1e4, *blocks(x, y, 0, 0)[0], KEY)
    assert np.isfinite(total) and np.isfinite(gradient).all()


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid"])
def test_nan_is_never_hidden(activation: Activation) -> None:
    spec = make_spec(activation=activation)
    parameters, x, y = make_batch(spec)
    parameters[0] = np.nan
    gradient, total, _, metrics = calls(spec)["gradient"](parameters, *blocks(x, y, 0, 0)[0], KEY)
    assert np.isnan(total) and np.isnan(gradient).any()
    assert metrics[0] == 0


@pytest.mark.parametrize(("loss", "float_targets"), CASES)
def test_score_is_the_same_loss_over_more_rows(loss: Loss, float_targets: bool) -> None:
    spec = make_spec(loss=loss, float_targets=float_targets)
    parameters, x, y = make_batch(spec)
    total, weight, metrics = calls(spec)["score"](parameters, x, y, np.ones(ROWS))
    assert difference(total, reference_loss(spec, parameters, x, y)) <= 1e-13
    assert weight == ROWS
    outputs = np.asarray(reference_outputs(spec, parameters, x))
    chosen = outputs[:, 0] > 0 if loss == "logistic" else outputs.argmax(axis=1)
    assert list(metrics) == ([] if float_targets else [np.sum(chosen == y)])


def test_of_equal_outputs_the_first_is_the_answer() -> None:
    spec = dataclasses.replace(make_spec(outputs=3), score_block=4)
    weight = np.array([1.0, 1.0, 1.0, 0.0])
    y = np.array([0, 1, 0, 0], np.int32)
    _, _, metrics = calls(spec)["score"](np.zeros(spec.model.parameters), np.zeros((4, INPUTS)), y, weight)
    assert metrics[0] == 2


def test_predictions_are_probabilities_or_raw_outputs() -> None:
    cases: dict[Loss, Any] = {"cross_entropy": jax.nn.softmax, "logistic": jax.nn.sigmoid, "mse": jnp.asarray}
    for loss, wanted in cases.items():
        spec = make_spec(loss=loss)
        parameters, x, _ = make_batch(spec)
        (outputs,) = calls(spec)["predict"](parameters, x)
        np.testing.assert_allclose(outputs, wanted(reference_outputs(spec, parameters, x)), rtol=1e-12)


def optax_of(rules: OptimizerSpec) -> Any:
    chosen = {
        "sgd": optax.sgd(rules.rate),
        "momentum": optax.sgd(rules.rate, momentum=rules.momentum),
        "adam": optax.adam(rules.rate, b1=rules.beta1, b2=rules.beta2, eps=rules.epsilon),
    }[rules.name]
    return chosen if rules.clip is None else optax.chain(optax.clip_by_global_norm(rules.clip), chosen)


@pytest.mark.parametrize("clip", [None, 0.5, 1e6])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_updates_follow_optax(name: str, clip: float | None, dtype: DType) -> None:
    rules = dataclasses.replace(RULES[name], clip=clip)
    spec = make_spec(optimizer=rules, dtype=dtype)
    program, peer = calls(spec)["update"], optax_of(rules)
    parameters = np.random.default_rng(3).normal(size=spec.model.parameters).astype(dtype)
    ours, state = parameters, [np.zeros(shape, dtype) for shape in lowering.state_shapes(spec)]
    theirs, their_state = jnp.asarray(parameters), peer.init(jnp.asarray(parameters))
    for step in range(10):
        gradient = np.random.default_rng(step).normal(size=spec.model.parameters).astype(dtype)
        ours, *state = program(ours, gradient, np.int32(step), *state)
        changes, their_state = peer.update(jnp.asarray(gradient), their_state, theirs)
        theirs = optax.apply_updates(theirs, changes)
    assert difference(ours, theirs) <= {"float32": 3e-6, "float64": 1e-13}[dtype]


def test_a_gradient_whose_square_overflows_is_still_clipped() -> None:
    spec = make_spec(optimizer=OptimizerSpec(name="sgd", rate=1.0, clip=1.0), dtype="float32")
    zeros = np.zeros(spec.model.parameters, np.float32)
    (moved,) = calls(spec)["update"](zeros, np.full_like(zeros, 1e30), np.int32(0))
    assert np.linalg.norm(moved) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(("loss", "float_targets"), CASES)
@pytest.mark.parametrize("optimizer", RULES.values(), ids=RULES)
def test_programs_have_their_signatures_and_pass_inspection(loss: Loss, float_targets: bool, optimizer: OptimizerSpec) -> None:
    spec = make_spec(loss=loss, float_targets=float_targets, optimizer=optimizer, dtype="float32")
    wanted = lowering.signatures(spec)
    for name, artifact in lowering.lower(spec).items():
        found = inspect_module(artifact.data, name=name, expected=wanted[name])
        assert found.digest == artifact.digest
        dtypes = {array.dtype for array in itertools.chain(found.signature.inputs, found.signature.outputs)}
        assert dtypes <= {"float32", "int32", "uint32"}


def test_only_what_a_program_depends_on_changes_its_digest() -> None:
    one, other = (lowering.lower(make_spec(optimizer=RULES[name])) for name in ("sgd", "adam"))
    assert {name: one[name].digest == other[name].digest for name in one} == {
        "gradient": True, "score": True, "predict": True, "update": False,
    }  # fmt: skip


def test_without_doubles_lowering_refuses() -> None:
    with jax.enable_x64(False), pytest.raises(EngineFailed, match="X64"):
        lowering.lower(make_spec(dtype="float64"))


def test_one_program_serves_all_platforms() -> None:
    exported = load(lowering.lower(make_spec())["gradient"].data)
    assert exported.platforms == ("cpu", "cuda")
    assert signature_of(exported) == lowering.signatures(make_spec())["gradient"]
