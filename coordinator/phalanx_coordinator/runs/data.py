"""Training and held-out rows on their way to the engines: standardized, cast, padded. Float64 until the cast."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator.runs.plan import SCORE_BLOCK
from phalanx_proto.experiment import DType, Rows
from phalanx_proto.jobs import FitRequest, Scaling

Array = NDArray[np.float64]


def fit_scaling(x: Array) -> Scaling:
    """Mean and standard deviation of each column of the training rows [rows, F].

    Sums are exactly rounded (``math.fsum``), so every machine finds the same bits. A constant column gets scale 1.
    """
    mean, scale = np.empty(x.shape[1]), np.empty(x.shape[1])
    for column in range(x.shape[1]):
        values = x[:, column]
        mean[column] = math.fsum(values.tolist()) / len(values)
        deviation = values - mean[column]
        spread = math.sqrt(math.fsum((deviation * deviation).tolist()) / len(values))
        scale[column] = spread if spread > 0 else 1.0
    return Scaling(mean=mean, scale=scale)


def features(rows: Rows, scaling: Scaling | None, dtype: DType) -> NDArray[np.floating]:
    """The rows' features [rows, F], scaled in Float64, then in the group dtype."""
    with np.errstate(over="ignore"):  # what float32 cannot hold is found, and named, in the first sum it enters
        x = rows.x if scaling is None else scaling.apply(rows.x)
        return np.ascontiguousarray(x, np.dtype(dtype))


def targets(rows: Rows, dtype: DType) -> NDArray[np.generic]:
    """Labels [rows] int32, or targets [rows, O] in the group dtype."""
    if np.issubdtype(rows.y.dtype, np.integer):
        return np.ascontiguousarray(rows.y, np.int32)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(rows.y, np.dtype(dtype))


def pad_rows(array: NDArray[np.generic], multiple: int) -> NDArray[np.generic]:
    """Zero rows appended up to a whole number of blocks of ``multiple`` rows."""
    missing = -len(array) % multiple
    if not missing:
        return array
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])


def fit_arrays(request: FitRequest, scaling: Scaling | None, dtype: DType) -> dict[str, NDArray[Any]]:
    """What the engines of a fit are given: training rows, initial parameters, validation rows padded to whole blocks."""
    arrays: dict[str, NDArray[Any]] = {
        "x": features(request.train, scaling, dtype),
        "y": targets(request.train, dtype),
        "initial": request.initial.astype(dtype),
    }
    if request.validation is not None:
        arrays["vx"] = pad_rows(features(request.validation, scaling, dtype), SCORE_BLOCK)
        arrays["vy"] = pad_rows(targets(request.validation, dtype), SCORE_BLOCK)
    return arrays
