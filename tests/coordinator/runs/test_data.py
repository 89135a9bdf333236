"""Rows on their way to the engines: scaled in Float64 by the training rows' own statistics, cast, padded."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx_coordinator.runs import data
from phalanx_proto.experiment import Rows

MakeRows = Callable[..., Rows]


def test_the_mean_is_the_exact_sum_rounded_once() -> None:
    x = np.array([[1e16], [1.0], [-1e16], [1.0]])
    assert np.mean(x) != 0.5
    assert data.fit_scaling(x).mean[0] == 0.5


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_the_sum_is_the_nearest_number_to_the_true_one(values: list[float]) -> None:
    found = data.fit_scaling(np.array(values)[:, None]).mean[0]
    assert found == float(sum(map(Fraction, values))) / len(values)


def test_the_deviation_is_that_of_the_whole_population() -> None:
    scaling = data.fit_scaling(np.array([[2.0, 10.0], [4.0, 10.5], [6.0, 11.0]]))
    assert scaling.mean.tolist() == [4.0, 10.5]
    assert scaling.scale.tolist() == [math.sqrt(8 / 3), math.sqrt(0.5 / 3)]


def test_the_order_of_the_rows_does_not_matter() -> None:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(501, 4)) * 10.0 ** generator.integers(-6, 6, size=(501, 4))
    ahead, back = data.fit_scaling(x), data.fit_scaling(x[::-1])
    assert ahead.mean.tobytes() == back.mean.tobytes()
    assert ahead.scale.tobytes() == back.scale.tobytes()


def test_a_constant_column_keeps_its_size() -> None:
    scaling = data.fit_scaling(np.array([[3.0, 1.0], [3.0, 2.0]]))
    assert scaling.scale[0] == 1.0
    assert scaling.apply(np.array([[3.0, 1.5]])).tolist() == [[0.0, 0.0]]


def test_scaled_training_rows_have_mean_zero_and_deviation_one() -> None:
    x = np.random.default_rng(5).normal(3.0, 7.0, size=(1000, 3))
    scaled = data.fit_scaling(x).apply(x)
    assert np.abs(scaled.mean(axis=0)).max() < 1e-12
    assert np.abs(scaled.std(axis=0) - 1).max() < 1e-12


def test_scaling_is_done_in_float64_before_the_cast(make_rows: MakeRows) -> None:
    x = np.array([[1e9], [1e9 + 1]])
    rows = make_rows(x=x, y=np.zeros(2, np.int32))
    scaled = data.features(rows, data.fit_scaling(x), "float32")
    assert scaled.dtype == np.float32
    assert scaled.tolist() == [[-1.0], [1.0]]
    assert (x.astype(np.float32) == np.float32(1e9)).all()


def test_features_without_scaling_are_only_cast(make_rows: MakeRows) -> None:
    rows = make_rows()
    assert data.features(rows, None, "float64").tobytes() == rows.x.tobytes()
    assert data.features(rows, None, "float32").tobytes() == rows.x.astype(np.float32).tobytes()


def test_what_float32_cannot_hold_is_left_to_be_named_by_the_sums(make_rows: MakeRows) -> None:
    rows = make_rows(x=np.full((6, 2), 1e300))
    assert np.isinf(data.features(rows, None, "float32")).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_labels_are_int32_and_float_targets_travel_in_the_group_dtype(make_rows: MakeRows, dtype: str) -> None:
    labels = data.targets(make_rows(y=np.array([2, 0, 1, 2, 0, 1], np.int64)), dtype)  # type: ignore[arg-type]
    assert labels.dtype == np.int32
    assert labels.tolist() == [2, 0, 1, 2, 0, 1]
    values = data.targets(make_rows(y=np.full((6, 2), 0.1)), dtype)  # type: ignore[arg-type]
    assert values.dtype == dtype


@pytest.mark.parametrize(("rows", "padded"), [(1, 4), (4, 4), (5, 8), (8, 8)])
def test_padding_fills_the_last_block_with_zeros(rows: int, padded: int) -> None:
    array = np.ones((rows, 3), np.float32)
    found = data.pad_rows(array, 4)
    assert found.shape == (padded, 3)
    assert found.dtype == np.float32
    assert found[:, 0].tolist() == [1.0] * rows + [0.0] * (padded - rows)
