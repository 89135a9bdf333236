"""Hit counts in PyTorch, one thread, its fastest way: its own 64-bit integers, two coordinates each, ``out=``.

Other samples than ours, so the count agrees only statistically. ``uniform_`` would take about twice as long.
"""

import time

import torch

from benchmarks.peers import simulation_arguments
from benchmarks.peers.line import emit

CHUNK = 16_384
LIMIT = 2.0**62
"""Coordinates are signed 32-bit numbers: the circle is whole and of radius 2**31."""


def hits(samples: int, generator: torch.Generator) -> int:
    words = torch.empty(CHUNK, dtype=torch.int64)
    halves = words.view(torch.int32)
    points = torch.empty(2 * CHUNK)
    x, y = points[:CHUNK], points[CHUNK:]
    inside = torch.empty(CHUNK, dtype=torch.bool)
    count = 0
    for start in range(0, samples, CHUNK):
        words.random_(generator=generator)
        points.copy_(halves)
        torch.mul(points, points, out=points)
        torch.add(x, y, out=x)
        torch.lt(x, LIMIT, out=inside)
        count += int(torch.count_nonzero(inside[: samples - start]))
    return count


def main() -> None:
    asked = simulation_arguments.from_arguments()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    generator = torch.Generator().manual_seed(asked.seed)
    hits(4 * CHUNK, generator)
    began = time.perf_counter()
    count = hits(asked.samples, generator)
    emit(time.perf_counter() - began, units=asked.samples, check=count, distributions=("torch",))


if __name__ == "__main__":
    main()
