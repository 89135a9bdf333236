"""Checkpoints as the tests need them."""

from typing import Any

import numpy as np

from phalanx_coordinator.checkpoints.checkpoint import Checkpoint, Origin

HERE = Origin(
    versions={"phalanx": "0.1.0", "jax": "0.10.1", "jaxlib": "0.10.1"}, source="5" * 64,
    numeric={"platform": "Linux x86_64", "features": "x86-64-v3: avx avx2", "jaxlib": "0.10.1"},
)  # fmt: skip


def checkpoint_of(update: int = 3, **changed: Any) -> Checkpoint:
    """A small checkpoint of a fit, with bits that no decimal text holds."""
    values = {
        "kind": "fit", "experiment": "e" * 64, "dtype": "float32", "update": update, "level": "bitwise", "origin": HERE,
        "state": {"best": None, "members": [], "seconds": {}},
        "arrays": {
            "parameters": (np.arange(5) + update / 3).astype(np.float32), "state-0": np.full(5, np.float32(0.1)),
            "sums": np.array([0.1, np.nan, -0.0]), "history": np.empty((0, 1, 3)),
        },
    }  # fmt: skip
    return Checkpoint(**{**values, **changed})


def same(one: Checkpoint | None, other: Checkpoint | None) -> bool:
    """Whether both hold the same, to the bit."""
    if one is None or other is None:
        return one is other
    arrays = [{name: (a.dtype.str, a.shape, a.tobytes()) for name, a in c.arrays.items()} for c in (one, other)]
    return one.to_document() == other.to_document() and arrays[0] == arrays[1]
