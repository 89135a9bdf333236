"""What every peer of Overhead and Exchange is asked: two members, VALUES float32 each, add them REPEATS times.

A round trip ends when the sum is known where the peer's users would have it: on both members for an all-reduce, on the
driver for actors and pipes (which were sent the values for each round, as a parameter server would).
"""

import argparse
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.line import emit

MEMBERS = 2


@dataclass(frozen=True, kw_only=True)
class Asked:
    values: int
    repeats: int

    @property
    def warm(self) -> int:
        """Rounds before the clock starts."""
        return max(2, self.repeats // 10)

    def report(self, seconds: float, total: np.ndarray, *distributions: str) -> None:
        """Print the result; ``total`` is the sum of the members' rank + 1. GB/s count both ways of each member."""
        check = float(total.min() + total.max()) / 2
        moved = MEMBERS * 2 * total.nbytes * self.repeats
        rate = moved / seconds / 1e9
        emit(seconds, units=self.repeats, check=check, distributions=distributions, gigabytes_a_second=rate)


def from_arguments() -> Asked:
    parser = argparse.ArgumentParser()
    parser.add_argument("--values", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    asked = parser.parse_args()
    return Asked(values=asked.values, repeats=asked.repeats)
