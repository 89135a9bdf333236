"""Exact hit counts in NumPy, one core, with our integers: chunks of 16,384 counters, ``out=`` everywhere.

Every operation is a pass of its own over the chunk, about a hundred a counter: NumPy has no such generator built in for
a counter range, so this is what reproducing the same samples costs it. ``simulation_numpy.py`` is its fast way.
"""

import time

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import simulation_arguments
from benchmarks.peers.line import emit

CHUNK = 16_384
u64 = np.uint64
Words = NDArray[np.uint64]
_LOW, _HALF, _ONE, _LIMIT = u64(0xFFFFFFFF), u64(32), u64(1), u64(1 << 62)
_LANES = np.arange(CHUNK, dtype=u64)


class Chunk:
    """Scratch arrays for one chunk; nothing is allocated per call."""

    def __init__(self, seed: int) -> None:
        self._words = [np.empty(CHUNK, u64) for _ in range(4)]
        self._products = [np.empty(CHUNK, u64) for _ in range(2)]
        self._hit = np.empty(CHUNK, np.bool_)
        low = [(seed + r * 0x9E3779B9) & 0xFFFFFFFF for r in range(10)]
        high = [((seed >> 32) + r * 0xBB67AE85) & 0xFFFFFFFF for r in range(10)]
        self._keys = [(u64(a), u64(b)) for a, b in zip(low, high, strict=True)]

    def hits(self, first: int, counters: int) -> int:
        """Hits of both samples of counters [first, first + counters), at most CHUNK."""
        c0, c1, c2, c3 = self._philox(first)
        return self._inside(c0, c1, counters) + self._inside(c2, c3, counters)

    def _philox(self, first: int) -> tuple[Words, Words, Words, Words]:
        c0, c1, c2, c3 = self._words
        p0, p1 = self._products
        np.add(_LANES, u64(first), out=c0)
        np.right_shift(c0, _HALF, out=c1)
        np.bitwise_and(c0, _LOW, out=c0)
        c2.fill(0)
        c3.fill(0)
        for key0, key1 in self._keys:
            np.multiply(c0, u64(0xD2511F53), out=p0)
            np.multiply(c2, u64(0xCD9E8D57), out=p1)
            np.right_shift(p1, _HALF, out=c0)
            np.bitwise_xor(c0, c1, out=c0)
            np.bitwise_xor(c0, key0, out=c0)
            np.right_shift(p0, _HALF, out=c2)
            np.bitwise_xor(c2, c3, out=c2)
            np.bitwise_xor(c2, key1, out=c2)
            np.bitwise_and(p1, _LOW, out=c1)
            np.bitwise_and(p0, _LOW, out=c3)
        return c0, c1, c2, c3

    def _inside(self, x: Words, y: Words, counters: int) -> int:
        for word in (x, y):
            np.right_shift(word, _ONE, out=word)
            np.bitwise_or(word, _ONE, out=word)
            np.multiply(word, word, out=word)
        np.add(x, y, out=x)
        np.less(x, _LIMIT, out=self._hit)
        return int(np.count_nonzero(self._hit[:counters]))


def hits(start: int, stop: int, seed: int) -> int:
    """Hits in samples [start, stop); both even here."""
    chunk = Chunk(seed)
    first, last = start // 2, stop // 2
    return sum(chunk.hits(at, min(CHUNK, last - at)) for at in range(first, last, CHUNK))


def warm() -> None:
    hits(0, 2 * CHUNK, 42)


def main() -> None:
    asked = simulation_arguments.from_arguments()
    warm()
    began = time.perf_counter()
    count = hits(0, asked.samples, asked.seed)
    emit(time.perf_counter() - began, units=asked.samples, check=count, distributions=("numpy",))


if __name__ == "__main__":
    main()
