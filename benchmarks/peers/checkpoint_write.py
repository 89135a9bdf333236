"""Writing a vector of float32 to the disk: the bytes alone, or (``--save``) as a checkpoint. The median of some repeats.

Each repeat writes a new file in the folder for temporary files; where that is memory, syncing costs nothing.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.line import emit
from phalanx_coordinator.checkpoints.checkpoint import Checkpoint, Origin
from phalanx_coordinator.checkpoints.files import PIECE
from phalanx_coordinator.checkpoints.store import CheckpointStore

Values = NDArray[np.float32]


def write(folder: Path, update: int, values: Values) -> None:
    """The bytes, in pieces as large as a checkpoint's."""
    view = values.view(np.uint8).data
    descriptor = os.open(folder / f"bytes-{update}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    while view.nbytes:
        view = view[os.write(descriptor, view[:PIECE]) :]
    os.fsync(descriptor)
    os.close(descriptor)


def save(folder: Path, update: int, values: Values) -> None:
    checkpoint = Checkpoint(
        kind="fit",
        experiment="0" * 64,
        dtype="float32",
        update=update,
        level="bitwise",
        origin=Origin(versions={}, source="", numeric={}),
        state={},
        arrays={"parameters": values},
    )
    CheckpointStore(folder / f"checkpoints-{update}").save(checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--values", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    values = np.random.default_rng(0).random(asked.values, np.float32)
    seconds = []
    for update in range(asked.repeats):
        folder = Path(tempfile.mkdtemp())
        began = time.perf_counter()
        (save if asked.save else write)(folder, update, values)
        seconds.append(time.perf_counter() - began)
        shutil.rmtree(folder)
    median = statistics.median(seconds)
    emit(median, check=float(values[-1]), distributions=("phalanx", "numpy"), gigabytes_a_second=values.nbytes / median / 1e9)


if __name__ == "__main__":
    main()
