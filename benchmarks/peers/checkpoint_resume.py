"""From a call with no engine running to the first committed update: a new fit, or (``--resume``) one that was broken off.

The fit to go on with is broken off in this process, after its first checkpoint; then everything ends, and the clock begins.
An update is seen when it is told, which is at the end of an epoch at the latest.
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import phalanx
from benchmarks.peers import dense_fixture
from benchmarks.peers.checkpoint_fit import rows
from benchmarks.peers.dense_fixture import BATCH, RATE, SEED
from benchmarks.peers.dense_phalanx import model
from benchmarks.peers.line import emit
from phalanx_proto.jobs import Progress


class Enough(Exception):
    """What breaks a fit off."""


def seen(until: Callable[[Progress], bool]) -> Callable[[Progress], None]:
    """A listener that breaks the fit off at the first progress ``until`` is true of."""

    def listen(progress: Progress) -> None:
        if progress.phase == "updates" and until(progress):
            raise Enough

    return listen


def main() -> None:
    fixture = dense_fixture.from_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", action="store_true")
    resume = parser.parse_known_args()[0].resume
    place = phalanx.local(workers=1, dtype=fixture.dtype)
    config = phalanx.training(epochs=fixture.epochs, batch=BATCH, rate=RATE, seed=SEED)
    values = (model(fixture), rows(fixture), config)
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        if resume:
            checkpoints = job / "checkpoints"
            broken = seen(lambda progress: checkpoints.is_dir() and any(checkpoints.glob("checkpoint-*")))
            with contextlib.suppress(Enough):
                phalanx.fit(*values, execution=place, output=job, progress=broken)
            phalanx.shutdown()
        began = time.perf_counter()
        with contextlib.suppress(Enough):
            if resume:
                phalanx.resume(job, progress=seen(lambda progress: True))
            else:
                phalanx.fit(*values, execution=place, output=job, progress=seen(lambda progress: True))
        seconds = time.perf_counter() - began
        goes_on = any(event.kind == "resumed" for event in phalanx.job(job).events())
    phalanx.shutdown()
    if goes_on != resume:
        raise SystemExit("it did not begin where it was to begin")
    emit(seconds, check=0.0, distributions=("phalanx", "jax", "jaxlib", "numpy"))


if __name__ == "__main__":
    main()
