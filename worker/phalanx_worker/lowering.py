"""From a Dense model's spec to its four programs. Shapes are fixed here; who runs them, and how often, is not.

Parameters travel as one flat vector [P]: per layer the weights, row-major [inputs, outputs], then the bias [outputs].
Every program computes in the group dtype; sums go out as sums. Rows of weight 0 are padding and contribute exactly 0,
whatever finite or other values they hold.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from phalanx_proto.artifacts import ArraySpec, Artifact, Signature
from phalanx_proto.errors import EngineFailed
from phalanx_proto.experiment import Dense, ModelSpec, OptimizerSpec, ProgramSpec
from phalanx_proto.programs import PLATFORMS, export_program, load, shapes_of, signature_of

Array = jax.Array
Layers = list[tuple[Array, Array]]
STATES = {"sgd": (), "momentum": ("velocity",), "adam": ("first_moment", "second_moment")}
"""Names of the state arrays of each optimizer; each is [P] in the group dtype and starts at zero."""


class Head(NamedTuple):
    """What the last layer's outputs are worth, over one block."""

    loss: Array
    """[] sum of weighted row losses"""
    cotangent: Array
    """[rows, outputs] derivative of that sum by the outputs"""
    metrics: Array
    """[M] sums"""


def lower(spec: ProgramSpec, platforms: tuple[str, ...] = PLATFORMS) -> dict[str, Artifact]:
    """The programs ``gradient``, ``score``, ``predict`` and ``update``, with exactly the shapes of ``signatures``.

    Raises EngineFailed if the process cannot keep the dtypes (JAX without 64-bit types).
    """
    functions: dict[str, Callable[..., tuple[Array, ...]]] = {
        "gradient": _gradient(spec),
        "score": _score(spec),
        "predict": _predict(spec),
        "update": _update(spec),
    }
    artifacts = {}
    for name, wanted in signatures(spec).items():
        artifacts[name] = export_program(name, functions[name], shapes_of(wanted), platforms)
        found = signature_of(load(artifacts[name].data, name=name))
        if found != wanted:
            raise EngineFailed(f"program {name!r} was lowered to {found}, wanted {wanted}; set JAX_ENABLE_X64=1")
    return artifacts


def signatures(spec: ProgramSpec) -> dict[str, Signature]:
    """Arrays in and out of each program."""
    size, outputs, metrics = spec.model.parameters, spec.model.outputs, len(spec.metrics)

    def array(name: str, *shape: int, dtype: str = spec.dtype) -> ArraySpec:
        return ArraySpec(name=name, shape=shape, dtype=dtype)

    def rows(count: int) -> tuple[ArraySpec, ...]:
        y = array("y", count, outputs) if spec.float_targets else array("y", count, dtype="int32")
        return array("x", count, spec.model.inputs), y, array("weight", count)

    parameters, gradient = array("parameters", size), array("gradient", size)
    sums = (array("loss"), array("weight"), array("metrics", metrics))
    state = tuple(array(name, size) for name in STATES[spec.optimizer.name])
    key, step = array("key", 4, dtype="uint32"), array("step", dtype="int32")
    return {
        "gradient": Signature(inputs=(parameters, *rows(spec.block), key), outputs=(gradient, *sums)),
        "score": Signature(inputs=(parameters, *rows(spec.score_block)), outputs=sums),
        "predict": Signature(
            inputs=(parameters, array("x", spec.score_block, spec.model.inputs)),
            outputs=(array("outputs", spec.score_block, outputs),),
        ),
        "update": Signature(inputs=(parameters, gradient, step, *state), outputs=(parameters, *state)),
    }


def state_shapes(spec: ProgramSpec) -> tuple[tuple[int, ...], ...]:
    """Shapes of the optimizer's state arrays, in the group dtype; all start at zero."""
    return tuple((spec.model.parameters,) for _ in STATES[spec.optimizer.name])


def unflatten(parameters: Array, model: ModelSpec) -> Layers:
    """Weights and bias of each dense layer from the flat vector [P]."""
    layers, start = [], 0
    for layer in model.dense:
        middle = start + layer.inputs * layer.outputs
        stop = middle + layer.outputs
        layers.append((parameters[start:middle].reshape(layer.inputs, layer.outputs), parameters[middle:stop]))
        start = stop
    return layers


def forward(layers: Layers, x: Array, model: ModelSpec) -> Array:
    """Outputs [rows, outputs] of the model, before the loss."""
    remaining = iter(layers)
    for layer in model.layers:
        if isinstance(layer, Dense):
            weights, bias = next(remaining)
            x = jnp.matmul(x, weights, precision=lax.Precision.HIGHEST) + bias
        else:
            x = _ACTIVATIONS[layer](x)
    return x


def _relu(x: Array) -> Array:
    # Not maximum: its derivative at 0 is one half. Not x > 0: that would turn NaN into 0 and hide it.
    return jnp.where(x <= 0, jnp.zeros_like(x), x)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": _relu, "sigmoid": lax.logistic}


def _without_padding(values: Array, weight: Array) -> Array:
    """Rows of weight 0 become zeros, so that 0 * infinity cannot arise from them."""
    return jnp.where((weight != 0)[:, None], values, jnp.zeros_like(values))


def _one_hot(y: Array, outputs: int) -> Array:
    """[rows, outputs] bool; an out-of-range label marks nothing."""
    return y[:, None] == jnp.arange(outputs, dtype=y.dtype)[None, :]


def _correct(outputs: Array, y: Array, weight: Array) -> Array:
    """[1] number of weighted rows whose first largest output is the label. NaN rows are wrong."""
    width = outputs.shape[1]
    index = jnp.arange(width, dtype=jnp.int32)[None, :]
    largest = jnp.max(outputs, axis=1, keepdims=True)
    first = jnp.min(jnp.where(outputs == largest, index, jnp.int32(width)), axis=1)
    return _count(first == y, weight)


def _count(correct: Array, weight: Array) -> Array:
    return jnp.sum((correct & (weight != 0)).astype(weight.dtype), keepdims=True)


def _cross_entropy(z: Array, y: Array, weight: Array) -> Head:
    """Row loss: logsumexp(z) - z[y], in nats."""
    chosen = _one_hot(y, z.shape[1])
    shifted = z - jnp.max(z, axis=1, keepdims=True)
    exponents = jnp.exp(shifted)
    total = jnp.sum(exponents, axis=1)
    losses = jnp.log(total) - jnp.sum(jnp.where(chosen, shifted, jnp.zeros_like(z)), axis=1)
    cotangent = exponents * (weight / total)[:, None] - chosen.astype(z.dtype) * weight[:, None]
    return Head(jnp.sum(weight * losses), cotangent, _correct(z, y, weight))


def _mse(z: Array, y: Array, weight: Array) -> Head:
    """Row loss: mean over the outputs of the squared error; labels stand for one-hot rows."""
    labels = y.ndim == 1
    target = _one_hot(y, z.shape[1]).astype(z.dtype) if labels else _without_padding(y, weight)
    error = z - target
    losses = jnp.sum(error * error, axis=1) / z.shape[1]
    metrics = _correct(z, y, weight) if labels else jnp.zeros((0,), z.dtype)
    return Head(jnp.sum(weight * losses), error * (weight * 2 / z.shape[1])[:, None], metrics)


def _logistic(z: Array, y: Array, weight: Array) -> Head:
    """Row loss: softplus(z) - y z for one output, y in {0, 1}; softplus(z) = max(z, 0) + log1p(exp(-|z|))."""
    score = z[:, 0]
    target = y[:, 0] if y.ndim == 2 else y.astype(z.dtype)
    target = jnp.where(weight != 0, target, jnp.zeros_like(target))
    losses = jnp.maximum(score, 0) + jnp.log1p(jnp.exp(-jnp.abs(score))) - target * score
    cotangent = weight * (lax.logistic(score) - target)
    metrics = jnp.zeros((0,), z.dtype) if y.ndim == 2 else _count((score > 0) == (y == 1), weight)
    return Head(jnp.sum(weight * losses), cotangent[:, None], metrics)


_HEADS = {"cross_entropy": _cross_entropy, "mse": _mse, "logistic": _logistic}


def _gradient(spec: ProgramSpec) -> Callable[..., tuple[Array, ...]]:
    head = _HEADS[spec.loss]

    def gradient(parameters: Array, x: Array, y: Array, weight: Array, key: Array) -> tuple[Array, ...]:
        del key  # a Dense model draws nothing
        clean = _without_padding(x, weight)
        layers = unflatten(parameters, spec.model)
        outputs, pull = jax.vjp(lambda values: forward(values, clean, spec.model), layers)
        found = head(outputs, y, weight)
        (slopes,) = pull(found.cotangent)
        flat = jnp.concatenate([part.reshape(-1) for pair in slopes for part in pair])
        return flat, found.loss, jnp.sum(weight), found.metrics

    return gradient


def _score(spec: ProgramSpec) -> Callable[..., tuple[Array, ...]]:
    head = _HEADS[spec.loss]

    def score(parameters: Array, x: Array, y: Array, weight: Array) -> tuple[Array, ...]:
        layers = unflatten(parameters, spec.model)
        found = head(forward(layers, _without_padding(x, weight), spec.model), y, weight)
        return found.loss, jnp.sum(weight), found.metrics

    return score


def _predict(spec: ProgramSpec) -> Callable[..., tuple[Array, ...]]:
    def predict(parameters: Array, x: Array) -> tuple[Array, ...]:
        z = forward(unflatten(parameters, spec.model), x, spec.model)
        if spec.loss == "cross_entropy":
            exponents = jnp.exp(z - jnp.max(z, axis=1, keepdims=True))
            return (exponents / jnp.sum(exponents, axis=1, keepdims=True),)
        return (lax.logistic(z) if spec.loss == "logistic" else z,)

    return predict


def _clipped(gradient: Array, limit: float) -> Array:
    """The gradient scaled to a global norm of at most ``limit``, as optax.clip_by_global_norm; norm in Float64."""
    wide = gradient.astype(jnp.float64)
    norm = jnp.sqrt(jnp.sum(wide * wide))
    return jnp.where(norm < limit, gradient, (wide / norm * limit).astype(gradient.dtype))


def _sgd(rules: OptimizerSpec, gradient: Array, step: Array) -> tuple[Array, ...]:
    return (rules.rate * gradient,)


def _momentum(rules: OptimizerSpec, gradient: Array, step: Array, velocity: Array) -> tuple[Array, ...]:
    velocity = rules.momentum * velocity + gradient
    return rules.rate * velocity, velocity


def _adam(rules: OptimizerSpec, gradient: Array, step: Array, first: Array, second: Array) -> tuple[Array, ...]:
    """Kingma and Ba 2015, algorithm 1. The bias corrections are made in Float64: 1 - 0.999 loses digits in f32."""
    first = rules.beta1 * first + (1 - rules.beta1) * gradient
    second = rules.beta2 * second + (1 - rules.beta2) * (gradient * gradient)
    time = step.astype(jnp.float64) + 1
    unbias1, unbias2 = ((1 / (1 - jnp.float64(beta) ** time)).astype(gradient.dtype) for beta in (rules.beta1, rules.beta2))
    return rules.rate * (first * unbias1) / (jnp.sqrt(second * unbias2) + rules.epsilon), first, second


_OPTIMIZERS: dict[str, Callable[..., tuple[Array, ...]]] = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}


def _update(spec: ProgramSpec) -> Callable[..., tuple[Array, ...]]:
    rules = spec.optimizer

    def update(parameters: Array, gradient: Array, step: Array, *state: Array) -> tuple[Array, ...]:
        if rules.clip is not None:
            gradient = _clipped(gradient, rules.clip)
        move, *state_after = _OPTIMIZERS[rules.name](rules, gradient, step, *state)
        return parameters - move, *state_after

    return update
