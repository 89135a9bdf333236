"""The Dense fixture on one engine with a job's directory, and ``--keep`` with checkpoints in it: the median of some fits."""

import argparse
import statistics
import tempfile
from pathlib import Path

import phalanx
from benchmarks.peers import dense_fixture
from benchmarks.peers.dense_fixture import BATCH, RATE, SEED, Fixture
from benchmarks.peers.dense_phalanx import model
from benchmarks.peers.line import emit
from phalanx_proto.experiment import Rows

NEVER = 1 << 30
"""Updates from one checkpoint to the next that no fit has."""


def rows(fixture: Fixture) -> Rows:
    return phalanx.Dataset.from_arrays(fixture.features, fixture.labels).partition(validation=0, test=0).train


def main() -> None:
    fixture = dense_fixture.from_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--repeats", type=int, required=True)
    asked, _ = parser.parse_known_args()
    every = None if asked.keep else NEVER
    train, place = rows(fixture), phalanx.local(workers=1, dtype=fixture.dtype)
    warm = phalanx.training(epochs=1, batch=BATCH, rate=RATE, seed=SEED)
    phalanx.fit(model(fixture), train, warm, execution=place)
    config = phalanx.training(epochs=fixture.epochs, batch=BATCH, rate=RATE, seed=SEED)
    seconds, kept = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.repeats):
            job = Path(folder) / f"job-{number}"
            fitted = phalanx.fit(model(fixture), train, config, execution=place, output=job, checkpoint_every=every)
            seconds.append(fitted.seconds.updates)
            kept += sum(event.kind == "checkpoint" for event in phalanx.job(job).events())
    phalanx.shutdown()
    emit(
        statistics.median(seconds),
        check=fitted.history[-1].train.loss,
        distributions=("phalanx", "jax", "jaxlib", "numpy"),
        checkpoints=kept / asked.repeats,
    )


if __name__ == "__main__":
    main()
