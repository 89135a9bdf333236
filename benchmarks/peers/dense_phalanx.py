"""Dense fixture in Phalanx, in one placement: the same rows and initial values, its own row order."""

import argparse

import numpy as np

import phalanx
from benchmarks.peers import dense_fixture, placements
from benchmarks.peers.dense_fixture import BATCH, RATE, SEED, Fixture
from benchmarks.peers.line import emit
from phalanx.models import Model


def model(fixture: Fixture) -> Model:
    network = phalanx.sequential(SEED)
    layers = fixture.layers()
    for index, (weights, bias) in enumerate(layers):
        network = network.dense(*weights.shape, weights=weights, bias=bias)
        network = network.tanh() if index < len(layers) - 1 else network
    return phalanx.classifier(network, standardize=False, optimizer="sgd")


def main() -> None:
    fixture = dense_fixture.from_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--placement", required=True)
    placement = parser.parse_known_args()[0].placement
    train = phalanx.Dataset.from_arrays(fixture.features, fixture.labels).partition(validation=0, test=0).train
    config = phalanx.training(epochs=fixture.epochs, batch=BATCH, rate=RATE, seed=SEED)
    with placements.execution(placement, dtype=fixture.dtype) as execution:
        fitted = phalanx.fit(model(fixture), train, config, execution=execution)
        probabilities = fitted.outputs(fixture.features)
    picked = probabilities[np.arange(len(fixture.labels)), fixture.labels]
    seconds = fitted.seconds
    emit(
        seconds.updates,
        check=float(-np.mean(np.log(picked))),
        distributions=("phalanx", "jax", "jaxlib", "numpy"),
        setup=seconds.setup,
        total=seconds.total,
    )


if __name__ == "__main__":
    main()
