"""Exact hit counts on two cores: joblib's processes with the Numba or the NumPy kernel."""

import time

from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor

from benchmarks.peers import simulation_arguments, simulation_kernel
from benchmarks.peers.line import emit

WORKERS = 2


def main() -> None:
    asked = simulation_arguments.from_arguments()
    try:
        with Parallel(n_jobs=WORKERS) as pool:
            pool(delayed(simulation_kernel.warm)(asked.kernel) for _ in range(WORKERS))
            began = time.perf_counter()
            ranges = simulation_arguments.parts(asked.samples, WORKERS)
            count = sum(pool(delayed(simulation_kernel.hits)(asked.kernel, *part, asked.seed) for part in ranges))
            seconds = time.perf_counter() - began
    finally:
        get_reusable_executor().shutdown(wait=True)
    emit(seconds, units=asked.samples, check=count, distributions=("joblib", asked.kernel, "numpy"))


if __name__ == "__main__":
    main()
