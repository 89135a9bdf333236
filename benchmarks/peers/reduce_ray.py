"""A round to two Ray actors and back: each is sent the values and returns as many, which the driver adds."""

import time

import numpy as np

from benchmarks.peers import ray_session, reduce_arguments


class Actor:
    def __init__(self, rank: int, values: int) -> None:
        self.part = np.full(values, rank + 1, np.float32)

    def round(self, sent: np.ndarray) -> np.ndarray:
        return self.part


def main() -> None:
    asked = reduce_arguments.from_arguments()
    with ray_session.session() as ray:
        actors = [ray.remote(num_cpus=1)(Actor).remote(rank, asked.values) for rank in range(reduce_arguments.MEMBERS)]
        total = np.zeros(asked.values, np.float32)

        def rounds(repeats: int) -> None:
            for _ in range(repeats):
                sent = total if asked.values < 10_000 else ray.put(total)
                one, two = ray.get([actor.round.remote(sent) for actor in actors])
                np.add(one, two, out=total)

        rounds(asked.warm)
        began = time.perf_counter()
        rounds(asked.repeats)
        seconds = time.perf_counter() - began
    asked.report(seconds, total, "ray", "numpy")


if __name__ == "__main__":
    main()
