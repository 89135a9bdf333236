"""What every simulation peer is asked: count the hits among the first SAMPLES samples of SEED."""

import argparse
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, kw_only=True)
class Asked:
    samples: int
    seed: int
    kernel: str
    """``numba`` or ``numpy``, for the peers that only share out work."""


def from_arguments(argv: list[str] | None = None) -> Asked:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--kernel", choices=("numba", "numpy"), default="numba")
    asked = parser.parse_args(argv)
    return Asked(samples=asked.samples, seed=asked.seed, kernel=asked.kernel)


def parts(samples: int, pieces: int) -> list[tuple[int, int]]:
    """Contiguous ranges [start, stop) of nearly equal size, each starting at an even sample."""
    cuts = [samples * index // pieces // 2 * 2 for index in range(pieces)] + [samples]
    return list(pairwise(cuts))
