"""Dense fixture in plain JAX: one jitted ``lax.scan`` over each epoch's batches, one core."""

import os
import time

os.environ |= {"NPROC": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_experimental_ynn_fusion_type="}

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from benchmarks.peers import dense_fixture
from benchmarks.peers.dense_fixture import BATCH, RATE, TRAIN, Fixture
from benchmarks.peers.line import emit

Layers = list[tuple[Array, Array]]


def logits(layers: Layers, x: Array) -> Array:
    for weights, bias in layers[:-1]:
        x = jnp.tanh(x @ weights + bias)
    return x @ layers[-1][0] + layers[-1][1]


def loss_sum(layers: Layers, x: Array, y: Array, weight: Array) -> Array:
    z = logits(layers, x)
    return jnp.sum(weight * (jax.nn.logsumexp(z, axis=1) - jnp.take_along_axis(z, y[:, None], axis=1)[:, 0]))


def padded_epochs(fixture: Fixture) -> tuple[np.ndarray, np.ndarray]:
    """Row ids [epochs, updates, BATCH] and their weights [updates, BATCH]; the last batch is filled with weight 0."""
    updates = -(-TRAIN // BATCH)
    ids = np.zeros((fixture.epochs, updates * BATCH), np.int32)
    ids[:, :TRAIN] = fixture.orders()
    weight = (np.arange(updates * BATCH) < TRAIN).astype(fixture.dtype)
    return ids.reshape(fixture.epochs, updates, BATCH), weight.reshape(updates, BATCH)


def main() -> None:
    fixture = dense_fixture.from_arguments()
    jax.config.update("jax_enable_x64", fixture.dtype == "float64")
    features, labels = jnp.asarray(fixture.features), jnp.asarray(fixture.labels, jnp.int32)
    ids, weight = padded_epochs(fixture)

    def epoch(layers: Layers, ids: Array, weight: Array, features: Array, labels: Array) -> Layers:
        def update(layers: Layers, batch: tuple[Array, Array]) -> tuple[Layers, None]:
            rows, weight = batch
            gradient = jax.grad(loss_sum)(layers, features[rows], labels[rows], weight)
            scale = RATE / jnp.sum(weight)
            return jax.tree.map(lambda p, g: p - scale * g, layers, gradient), None

        return lax.scan(update, layers, (ids, weight))[0]

    layers: Layers = [(jnp.asarray(w), jnp.asarray(b)) for w, b in fixture.layers()]
    order, weights = jnp.asarray(ids), jnp.asarray(weight)
    run = jax.jit(epoch, donate_argnums=0).lower(layers, order[0], weights, features, labels).compile()
    jax.block_until_ready((layers, order, weights, features, labels))
    began = time.perf_counter()
    for rows in order:
        layers = run(layers, rows, weights, features, labels)
    jax.block_until_ready(layers)
    seconds = time.perf_counter() - began
    check = fixture.loss([(np.asarray(w), np.asarray(b)) for w, b in layers])
    emit(seconds, check=check, distributions=("jax", "jaxlib", "numpy"))


if __name__ == "__main__":
    main()
