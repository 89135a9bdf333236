"""Data to try things on: two real sets that come with the package, and two generators.

The generators use integers that Float64 holds exactly, so labels and features have the same bits on every machine.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

from phalanx.checks import Faults
from phalanx.dataset import Dataset
from phalanx_proto import philox

MAX_ROWS = 1_000_000
MAX_INPUTS = 4_096
MAX_CLASSES = 256
MAX_VALUES = 8_000_000
MAX_WORK = 500_000_000
"""Teacher work units: rows * inputs * classes."""
MAX_SAMPLES = 10_000_000

STREAM_DATA = 5
"""Philox stream of generated data, beside those of ``philox``; its lanes follow."""
_LANE_FEATURES, _LANE_TEACHER, _LANE_SAMPLES = 0, 1, 2
_PART = 1 << 20
"""Words drawn at a time, which bounds the memory beside the result."""

_GZIP = 16 + zlib.MAX_WBITS
"""Tells zlib to expect a gzip header."""

PROCEDURAL_INPUTS = 8
_NOISE_WORDS = 4
_COEFFICIENTS = np.array([5, -4, 3, -2, 2, -1, 1, 0], dtype=np.int64)
_INTERCEPT = 1 << 30


def iris() -> Dataset:
    """150 iris plants, 4 measurements in cm, 3 species (Fisher 1936); scikit-learn's copy, see data/ATTRIBUTION.md."""
    head, *lines = _bundled("iris.csv").decode().split()
    table = np.array([line.split(",") for line in lines], dtype=np.float64)
    return Dataset.from_arrays(table[:, :-1], table[:, -1].astype(np.int32), names=head.split(",")[2:])


def digits() -> Dataset:
    """1,797 handwritten digits, 8 x 8 pixels from 0 to 16, 10 classes (Alpaydin, Kaynak 1998); data/ATTRIBUTION.md."""
    text = zlib.decompress(_bundled("digits.csv.gz"), wbits=_GZIP).decode()
    table = np.array([line.split(",") for line in text.split()], dtype=np.int32)
    return Dataset.from_arrays(table[:, :-1], table[:, -1], names=[str(digit) for digit in range(10)])


def synthetic(rows: int, inputs: int, classes: int, seed: int) -> Dataset:
    """Uniform features in [-1, 1), labelled by a linear teacher: the class with the largest ``x @ w``, w from ``seed``.

    A class may have few rows, or none. Raises ``InvalidExperiment`` with every limit that is passed: 1,000,000 rows,
    4,096 inputs, 2 to 256 classes, 8,000,000 feature values, 500,000,000 teacher work units (rows * inputs * classes).
    """
    faults = Faults()
    rows = faults.whole("rows", rows, 1)
    inputs = faults.whole("inputs", inputs, 1)
    classes = faults.whole("classes", classes, 2)
    seed = faults.seed(seed)
    work = {
        "rows": (rows, MAX_ROWS),
        "inputs": (inputs, MAX_INPUTS),
        "classes": (classes, MAX_CLASSES),
        "feature values (rows * inputs)": (rows * inputs, MAX_VALUES),
        "teacher work units (rows * inputs * classes)": (rows * inputs * classes, MAX_WORK),
    }
    for name, (asked, most) in work.items():
        if asked > most:
            faults.add(f"{asked:,} {name} are more than the {most:,} admitted")
    faults.settle()
    features = np.empty((rows, inputs))
    labels = np.empty(rows, np.int32)
    # Integers of at most 2**8 times integers of at most 2**31, at most 2**12 of them: every sum is an integer below
    # 2**53, hence exact in Float64 in any order.
    drawn = philox.words(seed, STREAM_DATA, inputs * classes, lane=_LANE_TEACHER)
    teacher = (drawn >> np.uint32(23)).astype(np.float64).reshape(inputs, classes) - 256.0
    step = max(1, _PART // max(inputs, classes))
    for start in range(0, rows, step):
        count = min(step, rows - start)
        part = _centred(seed, _LANE_FEATURES, start * inputs, count * inputs).reshape(count, inputs)
        labels[start : start + count] = (part.astype(np.float64) @ teacher).argmax(axis=1)
        features[start : start + count] = part * 2.0**-31
    return Dataset.from_arrays(features, labels, names=[str(label) for label in range(classes)])


def procedural(samples: int, seed: int) -> Dataset:
    """Eight uniform features in [-1, 1) and a binary label for logistic regression; sample k depends on (seed, k) only.

    The label is 1 where an integer linear score plus noise (a sum of four uniforms) is positive; the teacher is the
    same for every seed. Raises ``InvalidExperiment`` unless there are 1 to 10,000,000 samples.
    """
    faults = Faults()
    samples = faults.whole("samples", samples, 1, MAX_SAMPLES)
    seed = faults.seed(seed)
    faults.settle()
    width = PROCEDURAL_INPUTS + _NOISE_WORDS
    features = np.empty((samples, PROCEDURAL_INPUTS))
    labels = np.empty(samples, np.int32)
    step = _PART // width
    for start in range(0, samples, step):
        count = min(step, samples - start)
        part = _centred(seed, _LANE_SAMPLES, start * width, count * width).reshape(count, width)
        drawn, noise = part[:, :PROCEDURAL_INPUTS], part[:, PROCEDURAL_INPUTS:]
        score = (drawn * _COEFFICIENTS).sum(axis=1) + noise.sum(axis=1) + _INTERCEPT
        labels[start : start + count] = score > 0
        features[start : start + count] = drawn * 2.0**-31
    return Dataset.from_arrays(features, labels, names=["0", "1"])


def _centred(seed: int, lane: int, start: int, count: int) -> NDArray[np.int64]:
    """Words ``start`` .. ``start + count`` as integers from -2**31 to 2**31 - 1."""
    return philox.words(seed, STREAM_DATA, count, lane=lane, start=start).astype(np.int64) - (1 << 31)


def _bundled(name: str) -> bytes:
    from importlib import resources  # here, for it is a tenth of the time that importing phalanx may take

    return (resources.files("phalanx") / "data" / name).read_bytes()
