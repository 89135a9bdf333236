"""Time of one import in a fresh interpreter; the check value says whether JAX came with it."""

import argparse
import importlib
import sys
import time

from benchmarks.peers.line import emit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--module", required=True)
    name = parser.parse_args().module
    began = time.perf_counter()
    importlib.import_module(name)
    emit(time.perf_counter() - began, check=float("jax" in sys.modules), distributions=(name,))


if __name__ == "__main__":
    main()
