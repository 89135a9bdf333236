"""Hit counts in NumPy, one core, its fastest way: its own generator (SFC64), chunks of 16,384 samples, ``out=``.

Other samples than ours, so the count agrees only statistically.
"""

import time

import numpy as np

from benchmarks.peers import simulation_arguments
from benchmarks.peers.line import emit

CHUNK = 16_384


def hits(start: int, stop: int, seed: int) -> int:
    """Hits among stop - start samples of a stream of its own for (seed, start)."""
    random = np.random.Generator(np.random.SFC64([seed, start]))
    points = np.empty(2 * CHUNK)
    x, y = points[:CHUNK], points[CHUNK:]
    inside = np.empty(CHUNK, np.bool_)
    count = 0
    for at in range(start, stop, CHUNK):
        random.random(out=points)
        np.multiply(points, points, out=points)
        np.add(x, y, out=x)
        np.less(x, 1.0, out=inside)
        count += int(np.count_nonzero(inside[: stop - at]))
    return count


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
