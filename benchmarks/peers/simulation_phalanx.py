"""Exact hit counts in Phalanx, in one placement."""

import argparse

import phalanx
from benchmarks.peers import placements, simulation_arguments
from benchmarks.peers.line import emit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--placement", required=True)
    parser.add_argument("--whole", action="store_true", help="the seconds of all samples, not of one")
    placement, rest = parser.parse_known_args()
    asked = simulation_arguments.from_arguments(rest)
    with placements.execution(placement.placement) as execution:
        result = phalanx.monte_carlo(samples=asked.samples, seed=asked.seed, execution=execution)
    seconds = result.seconds
    emit(
        seconds.work,
        units=1 if placement.whole else asked.samples,
        check=result.hits,
        distributions=("phalanx", "jax", "jaxlib", "numpy"),
        setup=seconds.setup,
        total=seconds.total,
    )


if __name__ == "__main__":
    main()
