"""The kernel that joblib and Ray share out: Numba's or NumPy's, by name."""

import importlib


def hits(kernel: str, start: int, stop: int, seed: int) -> int:
    """Hits in samples [start, stop); the kernel's module is imported where this runs."""
    return int(importlib.import_module(f"benchmarks.peers.simulation_{kernel}").hits(start, stop, seed))


def warm(kernel: str) -> None:
    importlib.import_module(f"benchmarks.peers.simulation_{kernel}").warm()
