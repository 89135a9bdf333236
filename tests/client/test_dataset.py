import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.dataset import Dataset
from phalanx.datasets import iris
from phalanx_proto import tensors
from phalanx_proto.errors import InvalidExperiment, InvalidRequest, ProtectedRole

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def test_arrays_are_copied_and_locked() -> None:
    x, y = X.copy(), Y.copy()
    data = Dataset.from_arrays(x, y)
    x[:], y[:] = -1, 0
    np.testing.assert_array_equal(data.features, X)
    np.testing.assert_array_equal(data.targets, Y)
    assert data.features.dtype == np.float64
    assert data.targets.dtype == np.int32
    assert data.classes == 3
    assert not data.features.flags.writeable
    assert not data.targets.flags.writeable
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.classes = 4  # type: ignore[misc]


@pytest.mark.parametrize("x", [X.astype(np.float32), X.astype(np.int16), np.asfortranarray(X), X.tolist()])
def test_features_of_any_number_type_are_taken(x: Any) -> None:
    data = Dataset.from_arrays(x, Y)
    np.testing.assert_array_equal(data.features, X)
    assert data.features.flags.c_contiguous


@pytest.mark.parametrize("y", [Y.astype(np.uint8), Y.astype(np.int64), Y.tolist()])
def test_labels_of_any_integer_type_are_taken(y: Any) -> None:
    assert Dataset.from_arrays(X, y).targets.dtype == np.int32


def test_true_and_false_are_two_classes() -> None:
    assert Dataset.from_arrays(X, X[:, 0] > 5).classes == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_value_that_is_not_finite_is_named(value: float) -> None:
    x = X.copy()
    x[3, 1] = x[5, 0] = value
    with pytest.raises(InvalidRequest, match=rf"x has {value} at row 3, column 1 .*one of 2 such values"):
        Dataset.from_arrays(x, Y)
    y = np.array([0, 1, value, 3, 4, 5])
    with pytest.raises(InvalidRequest, match=r"y has .* at row 2 "):
        Dataset.from_arrays(X, y)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:, 0], Y, r"x must be \[rows, features\], not of shape \(6,\); for one feature use x\.reshape"),
        (X.reshape(3, 2, 2), Y, r"x must be \[rows, features\], not of shape \(3, 2, 2\)"),
        (X[:0], Y[:0], "at least one row"),
        (X[:, :0], Y, "at least one row and one feature"),
        (X, Y[:5], "x has 6 rows, but y has 5"),
        (X, Y.reshape(6, 1), r"labels y must be \[rows\], not of shape \(6, 1\)"),
        (X, [0, 1, 2, 0, -1, 2], "label -1 at row 4 is out of range"),
        (X, [0, 1, 3, 0, 1, 3], "the largest is 3, but class 2 has no row"),
        (X, [0, 1, 2, 0, 1, 2**40], "label 1099511627776 at row 5 is out of range"),
        (X, ["a", "b", "c"] * 2, r"y must hold real numbers, not <U1; turn class names into labels"),
        (X.astype(complex), Y, "x must hold real numbers, not complex128"),
        ([[1, 2], [3]], [0, 1], "x is not an array of numbers"),
        (X, np.zeros((6, 1, 1)), "float targets y must be"),
        (X, 3, "y is one number"),
        (np.ma.masked_less(X, 3), Y, "x is a masked array"),
        (np.full((1, 1), 2, np.longdouble) ** 2000, [0], "x has inf at row 0"),
    ],
)
def test_refusals(x: Any, y: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Dataset.from_arrays(x, y)


def test_names_give_the_classes() -> None:
    data = Dataset.from_arrays(X, [0, 1, 3, 0, 1, 3], names=["a", "b", "c", "d"])
    assert data.classes == 4
    assert data.names == ("a", "b", "c", "d")
    with pytest.raises(InvalidRequest, match="label 2 at row 2 is out of range: classes are 0 to 1"):
        Dataset.from_arrays(X, Y, names=["a", "b"])
    with pytest.raises(InvalidRequest, match="names must differ"):
        Dataset.from_arrays(X, Y, names=["a", "b", "a"])
    with pytest.raises(InvalidRequest, match="names must be the names"):
        Dataset.from_arrays(X, Y, names="abc")
    with pytest.raises(InvalidRequest, match="names are for classes"):
        Dataset.from_arrays(X, Y / 2, names=["a", "b", "c"])


def test_float_targets() -> None:
    data = Dataset.from_arrays(X, Y / 2)
    assert (data.classes, data.targets.shape) == (None, (6,))
    rows = data.rows(role="train")
    assert rows.y.shape == (6, 1)
    assert rows.y.dtype == np.float64
    parts = Dataset.from_arrays(X, X / 2).partition(validation=0.2, test=0.3, seed=1)
    assert parts.validation is not None
    assert parts.validation.y.shape == (1, 2)
    np.testing.assert_array_equal(parts.train.x / 2, parts.train.y)


@pytest.mark.parametrize(
    "groups", [[5, 5, -1, -1, 9, 9], ["b", "b", "a", "a", "c", "c"], np.array(["b", "b", "a", "a", "c", "c"], object)]
)
def test_groups_become_numbers(groups: Any) -> None:
    data = Dataset.from_arrays(X, Y, groups=groups)
    assert data.groups is not None
    assert data.groups.tolist() == [1, 1, 0, 0, 2, 2]
    assert "3 groups" in repr(data)


def test_wrong_groups_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"groups must be one value a row, \[6\], not of shape \(2,\)"):
        Dataset.from_arrays(X, Y, groups=[1, 2])
    with pytest.raises(InvalidRequest, match="groups must hold integers or strings, not float64"):
        Dataset.from_arrays(X, Y, groups=[0.5] * 6)


def test_the_example() -> None:
    data = iris()
    parts = data.partition(validation=0.2, test=0.2, seed=42)
    assert repr(parts) == "Partition(train=<90 rows>, validation=<30 rows>, test=<30 rows>)"
    assert parts.validation is not None
    assert parts.test is not None
    for rows, role in ((parts.train, "train"), (parts.validation, "validation"), (parts.test, "test")):
        assert rows.role == role
        assert rows.source == data.fingerprint
        assert rows.fingerprint == tensors.fingerprint(rows.x, rows.y, tag=role)
        assert np.bincount(rows.y).tolist() == [len(rows) // 3] * 3
        assert (rows.x.flags.writeable, rows.y.flags.writeable) == (False, False)


def test_roles_are_disjoint_and_complete_and_keep_the_order() -> None:
    x = np.arange(300.0).reshape(300, 1)
    data = Dataset.from_arrays(x, np.arange(300) % 3, groups=np.arange(300) // 5)
    parts = data.partition(validation=0.1, test=0.3, seed=3)
    assert parts.validation is not None
    assert parts.test is not None
    columns = [rows.x[:, 0] for rows in (parts.train, parts.validation, parts.test)]
    assert sorted(np.concatenate(columns).tolist()) == list(range(300))
    assert all((np.diff(column) > 0).all() for column in columns)
    held_groups = [set((column // 5).tolist()) for column in columns]
    assert not held_groups[0] & held_groups[1]
    assert not held_groups[0] & held_groups[2]
    assert not held_groups[1] & held_groups[2]


def test_a_role_that_is_not_asked_for_is_none() -> None:
    parts = iris().partition(validation=0, test=0.2, seed=1)
    assert (parts.validation, len(parts.train)) == (None, 120)
    parts = iris().partition(validation=0.0, test=0.0)
    assert (parts.validation, parts.test, len(parts.train)) == (None, None, 150)


@pytest.mark.parametrize(
    ("wrong", "problems"),
    [
        ({"validation": 0.5, "test": 0.5}, 1),
        ({"validation": 0.7, "test": 0.29999999999999999}, 1),
        ({"validation": 1.0, "test": -0.1, "seed": -1}, 3),
        ({"validation": True, "test": float("nan"), "seed": 1.0}, 3),
    ],
)
def test_wrong_fractions_are_refused(wrong: dict[str, Any], problems: int) -> None:
    with pytest.raises(InvalidExperiment) as raised:
        iris().partition(**wrong)
    assert len(raised.value.problems) == problems


def test_rows_of_a_dataset_that_came_split() -> None:
    data = Dataset.from_arrays(X, Y)
    assert data.rows().role == "all"
    assert data.rows(role="test").role == "test"
    assert data.rows(role="test").fingerprint != data.rows(role="train").fingerprint
    wrong: Any = "held-out"
    with pytest.raises(ProtectedRole, match="role must be one of train, validation, test, all"):
        data.rows(role=wrong)


def test_the_fingerprint_is_of_the_values() -> None:
    assert Dataset.from_arrays(X, Y).fingerprint == Dataset.from_arrays(X.tolist(), Y.tolist()).fingerprint
    changed = X.copy()
    changed[0, 0] = np.nextafter(0.0, 1.0)
    assert Dataset.from_arrays(X, Y).fingerprint != Dataset.from_arrays(changed, Y).fingerprint


def test_repr_says_what_it_is() -> None:
    assert repr(iris()) == "Dataset(150 rows, 4 features, 3 classes (setosa, versicolor, virginica))"
    assert repr(Dataset.from_arrays(X, X)) == "Dataset(6 rows, 2 features, 2 float targets)"
    assert repr(Dataset.from_arrays(X, X[:, 0])) == "Dataset(6 rows, 2 features, 1 float target)"
    assert repr(Dataset.from_arrays(X, X).rows("test")) == "Rows(test, 6 rows, 2 features)"


def test_npz_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=X, y=Y, groups=np.array(list("aabbcc")), names=np.array(["p", "q", "r"]), note=np.zeros(3))
    data = Dataset.from_npz(path)
    assert data.fingerprint == Dataset.from_arrays(X, Y).fingerprint
    assert data.names == ("p", "q", "r")
    assert data.groups is not None
    np.savez_compressed(path, x=X, y=Y)
    assert Dataset.from_npz(str(path)).groups is None


def test_npz_without_its_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", X=X, features=X)
    with pytest.raises(InvalidRequest, match=r"has no array named x and none named y; it has X, features"):
        Dataset.from_npz(tmp_path / "other.npz")


class Trap:
    sprung = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (setattr, (Trap, "sprung", True))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "trap.npz", x=X, y=np.array([Trap()], dtype=object))
    (tmp_path / "bare.npz").write_bytes(b"\x80\x04 this is no zip archive")
    with pytest.raises(InvalidRequest, match=r"cannot be read as an \.npz file"):
        Dataset.from_npz(tmp_path / "trap.npz")
    (tmp_path / "own.csv").write_text("x,y\n1,2\n")
    for name in ("bare.npz", "own.csv"):
        with pytest.raises(InvalidRequest, match=rf"{name} is not an \.npz file; make one with numpy\.savez\(path, x="):
            Dataset.from_npz(tmp_path / name)
    assert not Trap.sprung


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    whole = tmp_path / "whole.npz"
    np.savez_compressed(whole, x=X, y=Y)
    content = whole.read_bytes()
    damaged = tmp_path / "damaged.npz"
    for cut in (0, 10, len(content) // 2, len(content) - 1):
        damaged.write_bytes(content[:cut])
        with pytest.raises(InvalidRequest, match=r"damaged\.npz cannot be read"):
            Dataset.from_npz(damaged)
    flipped = bytearray(content)
    flipped[60] ^= 0xFF
    damaged.write_bytes(flipped)
    with pytest.raises(InvalidRequest, match=r"damaged\.npz cannot be read"):
        Dataset.from_npz(damaged)
    with pytest.raises(InvalidRequest, match="there is no file"):
        Dataset.from_npz(tmp_path / "absent.npz")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        Dataset.from_npz(tmp_path)
    np.save(tmp_path / "single.npy", X)
    with pytest.raises(InvalidRequest, match="holds a single array"):
        Dataset.from_npz(tmp_path / "single.npy")
