"""A round to two Dask actors and back: each is sent the values and returns as many, which the driver adds."""

import tempfile
import time

import numpy as np

from benchmarks.peers import reduce_arguments


class Actor:
    def __init__(self, rank: int, values: int) -> None:
        self.part = np.full(values, rank + 1, np.float32)

    def round(self, sent: np.ndarray) -> np.ndarray:
        return self.part


def main() -> None:
    import dask
    from distributed import Client, LocalCluster

    asked = reduce_arguments.from_arguments()
    with tempfile.TemporaryDirectory() as folder:
        dask.config.set({"temporary-directory": folder, "distributed.logging.distributed": "error"})
        members = reduce_arguments.MEMBERS
        with (
            LocalCluster(n_workers=members, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            workers = list(client.scheduler_info()["workers"])
            placed = [
                client.submit(Actor, rank, asked.values, actor=True, workers=[worker]) for rank, worker in enumerate(workers)
            ]
            actors = [future.result() for future in placed]
            total = np.zeros(asked.values, np.float32)

            def rounds(repeats: int) -> None:
                for _ in range(repeats):
                    one, two = [reply.result() for reply in [actor.round(total) for actor in actors]]
                    np.add(one, two, out=total)

            rounds(asked.warm)
            began = time.perf_counter()
            rounds(asked.repeats)
            seconds = time.perf_counter() - began
    asked.report(seconds, total, "distributed", "numpy")


if __name__ == "__main__":
    main()
