"""First fit of Iris from a cold process: 4 -> 8 -> 3, tanh, Adam, batch 32, 40 epochs; imports and compiling included.

One function a library; the check value is the accuracy on the rows it was fitted to.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from benchmarks.peers.line import emit

EPOCHS, BATCH, RATE, SEED = 40, 32, 0.01, 42
Result = tuple[float, tuple[str, ...]]


def iris() -> tuple[Any, Any]:
    """Standardized features [150, 4] and labels [150]."""
    from sklearn.datasets import load_iris

    x, y = load_iris(return_X_y=True)
    return (x - x.mean(axis=0)) / x.std(axis=0), y


def phalanx_local() -> Result:
    import phalanx

    train = phalanx.datasets.iris().partition(validation=0, test=0).train
    model = phalanx.classifier(phalanx.mlp(4, [8], 3, seed=SEED), standardize=True, optimizer="adam")
    config = phalanx.training(epochs=EPOCHS, batch=BATCH, rate=RATE, seed=SEED)
    fitted = phalanx.fit(model, train, config, execution=phalanx.local(workers=1))
    return fitted.history[-1].train.accuracy or 0.0, ("phalanx", "jax")


def torch() -> Result:
    import torch
    from torch import nn

    x, y = (torch.from_numpy(array) for array in iris())
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for ids in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[ids]), y[ids]).backward()
            optimizer.step()
    return float((model(x).argmax(1) == y).double().mean()), ("torch",)


def jax() -> Result:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    jax.config.update("jax_enable_x64", True)
    x, y = (jnp.asarray(array) for array in iris())
    random = np.random.default_rng(SEED)
    shapes = ((4, 8), (8,), (8, 3), (3,))
    layers = [jnp.asarray(random.normal(size=shape) * 0.4) for shape in shapes]
    optimizer = optax.adam(RATE)

    def loss(layers: Any, x: Any, y: Any) -> Any:
        z = jnp.tanh(x @ layers[0] + layers[1]) @ layers[2] + layers[3]
        return optax.softmax_cross_entropy_with_integer_labels(z, y).mean()

    @jax.jit
    def update(layers: Any, state: Any, ids: Any) -> Any:
        steps, state = optimizer.update(jax.grad(loss)(layers, x[ids], y[ids]), state)
        return optax.apply_updates(layers, steps), state

    state = optimizer.init(layers)
    for _ in range(EPOCHS):
        order = random.permutation(len(x))
        for start in range(0, len(x), BATCH):
            layers, state = update(layers, state, order[start : start + BATCH])
    z = jnp.tanh(x @ layers[0] + layers[1]) @ layers[2] + layers[3]
    return float((z.argmax(1) == y).mean()), ("jax", "optax")


def sklearn() -> Result:
    from sklearn.neural_network import MLPClassifier

    x, y = iris()
    model = MLPClassifier(
        (8,),
        activation="tanh",
        batch_size=BATCH,
        learning_rate_init=RATE,
        max_iter=EPOCHS,
        random_state=SEED,
    )
    return float(model.fit(x, y).score(x, y)), ("scikit-learn",)


LIBRARIES: dict[str, Callable[[], Result]] = {"phalanx": phalanx_local, "torch": torch, "jax": jax, "sklearn": sklearn}


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=tuple(LIBRARIES), required=True)
    accuracy, distributions = LIBRARIES[parser.parse_args().library]()
    emit(time.perf_counter() - began, check=accuracy, distributions=(*distributions, "numpy"))


if __name__ == "__main__":
    main()
