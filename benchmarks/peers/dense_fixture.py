"""The Dense fixture: the same rows, initial values and row orders for every peer, made with NumPy.

65,536 rows of 64 uniform features with the labels of a linear teacher in 4 classes, of which 0.7 train a 64 -> 128 ->
64 -> 4 tanh network by SGD 0.05 in batches of 1,536: 30 updates an epoch (the last one partial), 300 in all.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

ROWS, FEATURES, CLASSES = 65_536, 64, 4
TRAIN = 45_875
WIDTHS = (64, 128, 64, 4)
BATCH, RATE = 1_536, 0.05
SEED = 42

DType = Literal["float32", "float64"]
Floats = NDArray[Any]
"""float32 or float64, as asked."""


@dataclass(frozen=True, kw_only=True)
class Fixture:
    """One precision of the fixture."""

    dtype: DType
    epochs: int

    @cached_property
    def _rows(self) -> tuple[Floats, NDArray[np.int64]]:
        random = np.random.default_rng(SEED)
        x = random.uniform(-1.0, 1.0, size=(ROWS, FEATURES))
        y = np.argmax(x @ random.normal(size=(FEATURES, CLASSES)), axis=1)
        chosen = random.permutation(ROWS)[:TRAIN]
        return x[chosen].astype(self.dtype), y[chosen].astype(np.int64)

    @property
    def features(self) -> Floats:
        """[TRAIN, FEATURES]"""
        return self._rows[0]

    @property
    def labels(self) -> NDArray[np.int64]:
        """[TRAIN], 0 to CLASSES - 1"""
        return self._rows[1]

    def layers(self) -> list[tuple[Floats, Floats]]:
        """Initial (weights [inputs, outputs], bias [outputs]) of each layer: Xavier normal, and zeros."""
        random = np.random.default_rng(SEED + 1)
        pairs = pairwise(WIDTHS)
        scaled = (random.normal(size=pair) * np.sqrt(2.0 / sum(pair)) for pair in pairs)
        return [(weights.astype(self.dtype), np.zeros(weights.shape[1], self.dtype)) for weights in scaled]

    def orders(self) -> NDArray[np.int64]:
        """Row order of each epoch, [epochs, TRAIN]."""
        random = np.random.default_rng(SEED + 2)
        return np.stack([random.permutation(TRAIN) for _ in range(self.epochs)])

    @property
    def updates(self) -> int:
        """Updates in all."""
        return self.epochs * -(-TRAIN // BATCH)

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """Row ids of each update, in order."""
        for order in self.orders():
            for start in range(0, TRAIN, BATCH):
                yield order[start : start + BATCH]

    def loss(self, layers: list[tuple[Floats, Floats]]) -> float:
        """Mean cross entropy over all training rows, in float64: the check value of every peer."""
        h = self.features.astype(np.float64)
        for index, (weights, bias) in enumerate(layers):
            h = h @ weights.astype(np.float64) + bias.astype(np.float64)
            h = np.tanh(h) if index < len(layers) - 1 else h
        shifted = h - h.max(axis=1, keepdims=True)
        picked = shifted[np.arange(TRAIN), self.labels]
        return float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - picked))


def from_arguments(argv: list[str] | None = None) -> Fixture:
    """The fixture that the peer's command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=("float32", "float64"), required=True)
    parser.add_argument("--epochs", type=int, default=10)
    asked, _ = parser.parse_known_args(argv)
    return Fixture(dtype=asked.dtype, epochs=asked.epochs)
