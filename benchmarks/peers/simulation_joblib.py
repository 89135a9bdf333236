"""Exact hit counts on two cores: joblib's processes with the Numba or the NumPy kernel."""

import os
import time

from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor

from benchmarks.peers import simulation_arguments, simulation_kernel
from benchmarks.peers.line import emit

WORKERS = 2
MOST_WARMINGS = 50
PAUSE_SECONDS = 0.1
"""Keeps a warm worker from taking the task of one that is still starting."""


def warm(kernel: str) -> int:
    """Compile in whichever worker takes this; its process id."""
    simulation_kernel.warm(kernel)
    time.sleep(PAUSE_SECONDS)
    return os.getpid()


def warm_all(pool: Parallel, kernel: str) -> None:
    """Until every worker has compiled."""
    seen: set[int] = set()
    for _ in range(MOST_WARMINGS):
        seen.update(pool(delayed(warm)(kernel) for _ in range(WORKERS)))
        if len(seen) == WORKERS:
            return
    raise RuntimeError(f"only {len(seen)} of {WORKERS} workers took part")


def main() -> None:
    asked = simulation_arguments.from_arguments()
    try:
        with Parallel(n_jobs=WORKERS) as pool:
            warm_all(pool, asked.kernel)
            began = time.perf_counter()
            ranges = simulation_arguments.parts(asked.samples, WORKERS)
            count = sum(pool(delayed(simulation_kernel.hits)(asked.kernel, *part, asked.seed) for part in ranges))
            seconds = time.perf_counter() - began
    finally:
        get_reusable_executor().shutdown(wait=True)
    emit(seconds, units=asked.samples, check=count, distributions=("joblib", asked.kernel, "numpy"))


if __name__ == "__main__":
    main()
