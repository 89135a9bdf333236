"""Hit counts in PyTorch, one thread, with its own generator: other samples, so the count agrees only statistically.

Points are float32 pairs, chunks stay in the cache, ``out=`` throughout. Its 24-bit grid is coarser than ours.
"""

import time

import torch

from benchmarks.peers import simulation_arguments
from benchmarks.peers.line import emit

CHUNK = 32_768


def hits(samples: int, generator: torch.Generator) -> int:
    x, y = torch.empty(CHUNK), torch.empty(CHUNK)
    inside = torch.empty(CHUNK, dtype=torch.bool)
    count = 0
    for start in range(0, samples, CHUNK):
        size = min(CHUNK, samples - start)
        x.uniform_(generator=generator)
        y.uniform_(generator=generator)
        torch.mul(x, x, out=x)
        torch.addcmul(x, y, y, out=x)
        torch.lt(x, 1.0, out=inside)
        count += int(torch.count_nonzero(inside[:size]))
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
