"""Dense fixture on two Ray actors that compute with JAX, one core each; the driver adds and updates in NumPy.

Parameters and gradients travel as one flat array, passed plainly as arguments and results: its fastest way here.
"""

import os
import time
from typing import Any

import numpy as np

from benchmarks.peers import dense_fixture, ray_session
from benchmarks.peers.dense_fixture import BATCH, RATE, Fixture
from benchmarks.peers.line import emit

WARM_UPDATES = 3
ACTORS = 2
PART = BATCH // ACTORS


class Actor:
    """Half of every batch: gradient sums in the group's dtype."""

    def __init__(self, fixture: Fixture, index: int) -> None:
        os.environ |= {"NPROC": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_experimental_ynn_fusion_type="}
        import jax
        import jax.numpy as jnp
        from jax.flatten_util import ravel_pytree

        from benchmarks.peers.dense_jax import loss_sum

        jax.config.update("jax_enable_x64", fixture.dtype == "float64")
        self.batches = [ids[index::ACTORS] for ids in fixture.batches()]
        features, labels = jnp.asarray(fixture.features), jnp.asarray(fixture.labels, jnp.int32)
        layers: Any = ravel_pytree([(jnp.asarray(w), jnp.asarray(b)) for w, b in fixture.layers()])[1]

        def loss(flat: Any, ids: Any, weight: Any, features: Any, labels: Any) -> Any:
            return loss_sum(layers(flat), features[ids], labels[ids], weight)

        compiled: Any = jax.jit(jax.grad(loss))
        self.call: Any = lambda flat, ids, weight: np.asarray(compiled(flat, ids, weight, features, labels))
        self.dtype = fixture.dtype

    def gradient(self, update: int, flat: np.ndarray) -> np.ndarray:
        rows = self.batches[update]
        ids, weight = np.zeros(PART, np.int32), np.zeros(PART, self.dtype)
        ids[: len(rows)], weight[: len(rows)] = rows, 1
        return np.asarray(self.call(flat, ids, weight))


def flatten(layers: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    return np.concatenate([part.ravel() for layer in layers for part in layer])


def unflatten(flat: np.ndarray, fixture: Fixture) -> list[tuple[np.ndarray, np.ndarray]]:
    layers, at = [], 0
    for weights, bias in fixture.layers():
        end = at + weights.size
        layers.append((flat[at:end].reshape(weights.shape), flat[end : end + bias.size]))
        at = end + bias.size
    return layers


def main() -> None:
    fixture = dense_fixture.from_arguments()
    rows = [len(ids) for ids in fixture.batches()]
    with ray_session.session() as ray:
        actors = [ray.remote(num_cpus=1)(Actor).remote(fixture, index) for index in range(ACTORS)]

        def train(updates: int) -> np.ndarray:
            flat = flatten(fixture.layers())
            for update in range(updates):
                one, two = ray.get([actor.gradient.remote(update, flat) for actor in actors])
                flat = flat - np.asarray(RATE / rows[update], flat.dtype) * (one + two)
            return flat

        train(WARM_UPDATES)
        began = time.perf_counter()
        flat = train(fixture.updates)
        seconds = time.perf_counter() - began
    emit(seconds, check=fixture.loss(unflatten(flat, fixture)), distributions=("ray", "jax", "numpy"))


if __name__ == "__main__":
    main()
