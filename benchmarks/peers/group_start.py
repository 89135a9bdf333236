"""How long a group takes from nothing to its first update: members started, admitted, compiled and bound."""

import argparse

import phalanx
from benchmarks.peers import placements
from benchmarks.peers.line import emit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--placement", required=True)
    parser.add_argument("--share", type=float)
    asked = parser.parse_args()
    train = phalanx.datasets.iris().partition(validation=0, test=0).train
    model = phalanx.classifier(phalanx.mlp(4, [8], 3, seed=42), standardize=True, optimizer="adam")
    config = phalanx.training(epochs=1, batch=32, rate=0.01, seed=42)
    with placements.execution(asked.placement, oversubscribe=True, share=asked.share) as execution:
        fitted = phalanx.fit(model, train, config, execution=execution)
        assert fitted.seconds.setup is not None
        emit(fitted.seconds.setup, check=float(fitted.history[-1].train.loss), distributions=("phalanx", "jax"))


if __name__ == "__main__":
    main()
