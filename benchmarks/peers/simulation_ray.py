"""Exact hit counts on two cores: two Ray actors with the Numba or the NumPy kernel."""

import time

from benchmarks.peers import ray_session, simulation_arguments, simulation_kernel
from benchmarks.peers.line import emit

ACTORS = 2


class Actor:
    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        simulation_kernel.warm(kernel)

    def ready(self) -> bool:
        return True

    def hits(self, start: int, stop: int, seed: int) -> int:
        return simulation_kernel.hits(self.kernel, start, stop, seed)


def main() -> None:
    asked = simulation_arguments.from_arguments()
    with ray_session.session() as ray:
        actors = [ray.remote(num_cpus=1)(Actor).remote(asked.kernel) for _ in range(ACTORS)]
        ray.get([actor.ready.remote() for actor in actors])
        began = time.perf_counter()
        ranges = simulation_arguments.parts(asked.samples, ACTORS)
        count = sum(ray.get([a.hits.remote(*part, asked.seed) for a, part in zip(actors, ranges, strict=True)]))
        seconds = time.perf_counter() - began
    emit(seconds, units=asked.samples, check=count, distributions=("ray", asked.kernel, "numpy"))


if __name__ == "__main__":
    main()
