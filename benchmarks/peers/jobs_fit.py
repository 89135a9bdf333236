"""Time of an update of a fit in the background, while nobody or somebody asks for its status."""

import argparse
import tempfile
import time
from pathlib import Path

import phalanx
from benchmarks.peers.line import emit
from phalanx.job_handles import DirectoryJob

EVERY = 0.05
DEADLINE = 200.0


def submit(folder: str, epochs: int) -> DirectoryJob:
    """A fit of the digits on one engine, in the background."""
    parts = phalanx.datasets.digits().partition(seed=42)
    model = phalanx.classifier(phalanx.mlp(64, [64], 10, seed=42), standardize=True)
    config = phalanx.training(epochs=epochs, batch=64, rate=0.001, seed=42)
    return phalanx.submit_fit(model, parts.train, config, execution=phalanx.local(1), output=Path(folder) / "job")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--asked", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = submit(folder, asked.epochs)
        while asked.asked and not job.status().ended:
            time.sleep(EVERY)
        fitted = job.result(DEADLINE)
        assert isinstance(fitted, phalanx.Fitted)
        emit(fitted.seconds.updates, units=fitted.updates, check=fitted.train.loss, distributions=("phalanx",))
    phalanx.shutdown()


if __name__ == "__main__":
    main()
