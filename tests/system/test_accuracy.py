"""Held-out accuracy on the two real datasets that come with Phalanx."""

from collections.abc import Iterator

import numpy as np
import pytest

import phalanx

ONE = phalanx.local(1)


@pytest.fixture(scope="module", autouse=True)
def engines() -> Iterator[None]:
    """The pool of the tests is there before them, and gone after them."""
    rows = phalanx.datasets.synthetic(20, 2, 2, seed=1).rows("train")
    model = phalanx.classifier(phalanx.mlp(2, [], 2, seed=1))
    phalanx.fit(model, rows, phalanx.training(epochs=1, batch=20, rate=0.1), execution=ONE)
    yield
    phalanx.shutdown()


def test_iris() -> None:
    """The configuration of the README, for 100 epochs; the mean over ten partitions, since one has only 30 test rows."""
    dataset = phalanx.datasets.iris()
    model = phalanx.classifier(phalanx.mlp(4, [8], 3, seed=42), standardize=True, optimizer="adam")
    found = []
    for seed in range(10):
        parts = dataset.partition(validation=0.2, test=0.2, seed=seed)
        config = phalanx.training(epochs=100, batch=32, rate=0.01, seed=seed, validation=parts.validation)
        score = phalanx.fit(model, parts.train, config, execution=ONE).evaluate(parts.test)
        assert score.rows == 30
        assert score.accuracy is not None
        found.append(score.accuracy)
    assert np.mean(found) >= 0.93


def test_digits() -> None:
    """One hidden layer of 64, Float32, 30 epochs; 360 test rows."""
    parts = phalanx.datasets.digits().partition(validation=0.0, test=0.2, seed=42)
    model = phalanx.classifier(phalanx.mlp(64, [64], 10, seed=1), standardize=True, optimizer="adam")
    config = phalanx.training(epochs=30, batch=64, rate=0.003, seed=1)
    fitted = phalanx.fit(model, parts.train, config, execution=phalanx.local(1, dtype="float32"))
    score = fitted.evaluate(parts.test)
    assert score.rows >= 350
    assert score.accuracy is not None and score.accuracy >= 0.95
