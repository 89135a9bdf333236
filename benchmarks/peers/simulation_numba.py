"""Exact hit counts in Numba, one core: the same Philox4x32-10 integers.

Written to vectorise well: the misses of a stretch go to a small uint8 array, so that LLVM (which takes its vector
factor from what is loaded and stored) runs eight independent chains of counters at once. A plain scalar sum takes 1.7
times as long here.
"""

import os
import time
from typing import Any

import llvmlite.binding as llvm
import numpy as np

if os.environ.get("BENCH_NUMBA_512"):  # read by numba when it is imported
    features = f"{llvm.get_host_cpu_features().flatten()},-prefer-256-bit"
    os.environ |= {"NUMBA_CPU_NAME": llvm.get_host_cpu_name(), "NUMBA_CPU_FEATURES": features}

from numba import njit

from benchmarks.peers import simulation_arguments
from benchmarks.peers.line import emit

LANES, TURNS = 8192, 126
"""Counters of a stretch; stretches before the uint8 counts are emptied (2 misses each at most)."""

u64 = np.uint64
_LOW, _HALF, _ONE = u64(0xFFFFFFFF), u64(32), u64(1)


def _misses_of(counter: Any, key0: Any, key1: Any) -> Any:
    """Samples 2j and 2j+1 of counter j that miss: 0, 1 or 2. Upper halves stay dirty; a product masks what it reads."""
    c0, c1, c2, c3 = counter & _LOW, counter >> _HALF, u64(0), u64(0)
    for _ in range(10):
        p0, p1 = (c0 & _LOW) * u64(0xD2511F53), (c2 & _LOW) * u64(0xCD9E8D57)
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ key0, p1, (p0 >> _HALF) ^ c3 ^ key1, p0
        key0, key1 = (key0 + u64(0x9E3779B9)) & _LOW, (key1 + u64(0xBB67AE85)) & _LOW
    x0, y0 = ((c0 & _LOW) >> _ONE) | _ONE, ((c1 & _LOW) >> _ONE) | _ONE
    x1, y1 = ((c2 & _LOW) >> _ONE) | _ONE, ((c3 & _LOW) >> _ONE) | _ONE
    return ((x0 * x0 + y0 * y0) >> u64(62)) + ((x1 * x1 + y1 * y1) >> u64(62))


misses: Any = njit(inline="always")(_misses_of)


def _count(first: Any, stretches: int, key0: Any, key1: Any) -> Any:
    """Misses of ``stretches`` * LANES counters from ``first``."""
    missed = np.zeros(LANES, np.uint8)
    total = u64(0)
    for stretch in range(stretches):
        base = first + u64(stretch * LANES)
        for lane in range(LANES):
            missed[lane] += np.uint8(misses(base + u64(lane), key0, key1))
        if stretch % TURNS == TURNS - 1 or stretch == stretches - 1:
            for lane in range(LANES):
                total += u64(missed[lane])
                missed[lane] = 0
    return total


def _rest(first: Any, counters: int, key0: Any, key1: Any) -> Any:
    total = u64(0)
    for index in range(counters):
        total += misses(first + u64(index), key0, key1)
    return total


count: Any = njit(_count)
rest: Any = njit(_rest)


def hits(start: int, stop: int, seed: int) -> int:
    """Hits in samples [start, stop); both even here."""
    first, counters = start // 2, (stop - start) // 2
    keys = u64(seed & 0xFFFFFFFF), u64(seed >> 32)
    stretches, single = divmod(counters, LANES)
    missed = int(count(u64(first), stretches, *keys)) + int(rest(u64(first + stretches * LANES), single, *keys))
    return 2 * counters - missed


def warm() -> None:
    """Compile."""
    hits(0, 4 * LANES, 42)


def main() -> None:
    asked = simulation_arguments.from_arguments()
    warm()
    began = time.perf_counter()
    found = hits(0, asked.samples, asked.seed)
    emit(time.perf_counter() - began, units=asked.samples, check=found, distributions=("numba", "numpy"))


if __name__ == "__main__":
    main()
