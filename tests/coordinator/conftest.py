"""Requests and placements as the coordinator gets them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from phalanx_proto import tensors
from phalanx_proto.execution import Local
from phalanx_proto.experiment import Dense, ModelSpec, OptimizerSpec, Role, Rows
from phalanx_proto.jobs import FitRequest

MakeRows = Callable[..., Rows]
MakeRequest = Callable[..., FitRequest]


def rows_of(role: Role = "train", count: int = 6, **changed: Any) -> Rows:
    """Rows of two features and three classes, as a partition makes them; ``x`` and ``y`` may be given."""
    generator = np.random.default_rng(1)
    x = np.asarray(changed.get("x", generator.normal(size=(count, 2))))
    y = np.asarray(changed.get("y", np.arange(count, dtype=np.int32) % 3))
    return Rows(x=x, y=y, role=role, fingerprint=tensors.fingerprint(x, y, tag=role), source=changed.get("source", "s"))


def request_of(**changed: Any) -> FitRequest:
    """A fit that can be carried out, but for what is changed."""
    model = ModelSpec(layers=(Dense(inputs=2, outputs=4), "tanh", Dense(inputs=4, outputs=3)))
    sound = FitRequest(
        model=model, initial=np.zeros(model.parameters), loss="cross_entropy", optimizer=OptimizerSpec(),
        standardize=False, float_targets=False, train=rows_of(), validation=None, epochs=2, batch=4, block="auto", seed=42,
        shuffle=True, keep_best=False, execution=Local(workers=1),
    )  # fmt: skip
    return dataclasses.replace(sound, **changed)


@pytest.fixture
def make_rows() -> MakeRows:
    return rows_of


@pytest.fixture
def make_request() -> MakeRequest:
    return request_of
