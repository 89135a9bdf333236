"""A dataset, its checks, and its split into protected roles."""

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from phalanx import partition
from phalanx.checks import Faults
from phalanx_proto import tensors
from phalanx_proto.errors import InvalidRequest, ProtectedRole
from phalanx_proto.experiment import Role, Rows

MAX_CLASSES = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """The rows of one dataset by role: disjoint and complete. A role that was not asked for is None."""

    train: Rows
    validation: Rows | None
    test: Rows | None

    def __repr__(self) -> str:
        shown = (f"{name}={_count(getattr(self, name))}" for name in partition.ROLE_NAMES)
        return f"Partition({', '.join(shown)})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Features with labels or float targets, read-only; ``from_arrays`` and ``from_npz`` make and check one."""

    features: NDArray[np.float64]
    """[rows, features]"""
    targets: NDArray[Any]
    """int32 labels [rows], or float64 targets [rows] or [rows, outputs]."""
    classes: int | None
    """Number of classes; None for float targets."""
    names: tuple[str, ...] | None = None
    """Names of the classes."""
    groups: NDArray[np.int64] | None = None
    """[rows] number of the group that a row belongs to, from 0; rows of one group never take different roles."""

    @classmethod
    def from_arrays(
        cls, x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None, names: Sequence[str] | None = None
    ) -> "Dataset":
        """A dataset with copies of these arrays.

        ``x`` [rows, features] is finite. ``y`` [rows] of an integer type holds labels 0..C-1, each of which occurs,
        unless ``names`` [C] gives the classes; of a floating type, [rows] or [rows, outputs], it holds targets.
        ``groups`` [rows] are integers or strings. Raises ``InvalidRequest``.
        """
        features = _features(x)
        targets = _array("y", y)
        if len(targets) != len(features):
            raise InvalidRequest(f"x has {len(features):,} rows, but y has {len(targets):,}")
        codes = None if groups is None else _groups(groups, len(features))
        given = None if names is None else _names(names)
        if targets.dtype.kind == "f":
            if given is not None:
                raise InvalidRequest("names are for classes, but y holds float targets: give integer labels")
            return cls(features=features, targets=_float_targets(targets), classes=None, groups=codes)
        labels, classes = _labels(targets, given)
        return cls(features=features, targets=labels, classes=classes, names=given, groups=codes)

    @classmethod
    def from_npz(cls, path: str | os.PathLike[str]) -> "Dataset":
        """The dataset in an ``.npz`` file with arrays ``x``, ``y`` and, if it has them, ``groups`` and ``names``.

        Nothing is unpickled. Raises ``InvalidRequest`` for a file that is missing, damaged or lacks an array.
        """
        arrays = _read_npz(Path(path))
        missing = [name for name in ("x", "y") if name not in arrays]
        if missing:
            found = f"{', '.join(sorted(arrays)):.200}" or "nothing"
            raise InvalidRequest(f"{path} has no array named {' and none named '.join(missing)}; it has {found}")
        names = arrays.get("names")
        listed = None if names is None else [str(name) for name in names.reshape(-1)]
        return cls.from_arrays(arrays["x"], arrays["y"], arrays.get("groups"), listed)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of features and targets."""
        return tensors.fingerprint(self.features, self.targets, tag="dataset")

    def partition(self, *, validation: float = 0.2, test: float = 0.2, seed: int = 42) -> Partition:
        """Split into train, validation and test rows; the same for the same rows, fractions and seed, on any machine.

        Fractions are of all rows; 0 leaves a role out. Every class keeps its proportion in each role, by largest
        remainder, and has at least one row there. With ``groups`` no group is split, and proportions are kept as well
        as that allows. Rows keep their order. Raises ``InvalidExperiment`` for the arguments, ``InvalidRequest`` where
        the rows do not suffice.
        """
        faults = Faults()
        validation = faults.real("validation", validation, 0.0, 1.0)
        test = faults.real("test", test, 0.0, 1.0)
        seed = faults.seed(seed)
        # As close to one as this, train would be left with nothing but a rounding error.
        if not faults.problems and validation + test > 1.0 - 1e-9:
            faults.add(f"validation and test are fractions of all rows: {validation:g} + {test:g} leaves none to train on")
        faults.settle()
        labels = np.zeros(len(self), np.int64) if self.classes is None else self.targets.astype(np.int64)
        roles = partition.assign(labels, self.groups, validation, test, seed)
        return Partition(
            train=self._take("train", np.flatnonzero(roles == partition.TRAIN)),
            validation=self._take("validation", np.flatnonzero(roles == partition.VALIDATION)) if validation else None,
            test=self._take("test", np.flatnonzero(roles == partition.TEST)) if test else None,
        )

    def rows(self, role: Role = "all") -> Rows:
        """All rows, in one role: for data that was split before it came here."""
        if role not in get_args(Role):
            raise ProtectedRole(f"role must be one of {', '.join(get_args(Role))}; not {role!r:.60}")
        return self._take(role, None)

    def _take(self, role: Role, which: NDArray[np.int64] | None) -> Rows:
        x, y = (self.features, self.targets) if which is None else (self.features[which], self.targets[which])
        y = y.reshape(len(y), -1) if self.classes is None else y
        x, y = _frozen(x), _frozen(y)
        return Rows(x=x, y=y, role=role, fingerprint=tensors.fingerprint(x, y, tag=role), source=self.fingerprint)

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        rows, width = self.features.shape
        outputs = 1 if self.targets.ndim == 1 else self.targets.shape[1]
        held = f"{outputs} float target{'s' * (outputs > 1)}" if self.classes is None else f"{self.classes} classes"
        if self.names is not None and len(self.names) <= 10:
            held += f" ({', '.join(self.names)})"
        grouped = "" if self.groups is None else f", {int(self.groups.max()) + 1:,} groups"
        return f"Dataset({rows:,} rows, {width:,} features, {held}{grouped})"


def _count(rows: Rows | None) -> str:
    return "None" if rows is None else f"<{len(rows):,} rows>"


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def _array(name: str, values: ArrayLike) -> NDArray[Any]:
    """The values as an array of real numbers."""
    if isinstance(values, np.ma.MaskedArray):
        raise InvalidRequest(f"{name} is a masked array: fill or drop what is masked first")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{name} is not an array of numbers: {error}") from error
    if array.dtype.kind not in "biuf":
        hint = "; turn class names into labels with numpy.unique(y, return_inverse=True)" if name == "y" else ""
        raise InvalidRequest(f"{name} must hold real numbers, not {array.dtype}{hint}")
    if array.ndim == 0:
        raise InvalidRequest(f"{name} is one number, not an array")
    return array


def _features(x: ArrayLike) -> NDArray[np.float64]:
    array = _array("x", x)
    if array.ndim != 2:
        hint = "; for one feature use x.reshape(-1, 1)" if array.ndim == 1 else ""
        raise InvalidRequest(f"x must be [rows, features], not of shape {array.shape}{hint}")
    if 0 in array.shape:
        raise InvalidRequest(f"x must have at least one row and one feature, not the shape {array.shape}")
    return _finite("x", array)


def _float_targets(y: NDArray[Any]) -> NDArray[np.float64]:
    if y.ndim > 2 or 0 in y.shape:
        raise InvalidRequest(f"float targets y must be [rows] or [rows, outputs], not of shape {y.shape}")
    return _finite("y", y)


def _finite(name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    """A read-only Float64 copy, or an error that names the first value that is not finite."""
    with np.errstate(over="ignore"):
        copy = np.array(array, dtype=np.float64, order="C")
    finite = np.isfinite(copy)
    if not finite.all():
        where = [int(i) for i in np.unravel_index(int(np.argmin(finite)), copy.shape)]
        place = f"row {where[0]}" + (f", column {where[1]}" if len(where) > 1 else "")
        total = copy.size - int(np.count_nonzero(finite))
        raise InvalidRequest(f"{name} has {copy[tuple(where)]} at {place} (counted from 0), one of {total:,} such values")
    return _frozen(copy)


def _labels(y: NDArray[Any], names: tuple[str, ...] | None) -> tuple[NDArray[np.int32], int]:
    if y.ndim != 1:
        raise InvalidRequest(f"labels y must be [rows], not of shape {y.shape}")
    limit = MAX_CLASSES if names is None else len(names)
    wrong = np.flatnonzero((y < 0) | (y >= limit))
    if len(wrong):
        hint = "" if names is not None else "; renumber labels with numpy.unique(y, return_inverse=True)"
        raise InvalidRequest(f"label {y[wrong[0]]} at row {wrong[0]} is out of range: classes are 0 to {limit - 1:,}{hint}")
    labels = y.astype(np.int32)
    counts = np.bincount(labels)
    if names is None and not counts.all():
        raise InvalidRequest(
            f"labels must be 0 to C-1 without a gap: the largest is {len(counts) - 1}, but class "
            f"{int(counts.argmin())} has no row; renumber them with "
            "numpy.unique(y, return_inverse=True), or give the classes by names="
        )
    return _frozen(labels), len(counts) if names is None else len(names)


def _names(names: Sequence[str]) -> tuple[str, ...]:
    listed = tuple(names)
    if isinstance(names, str) or not listed or not all(isinstance(name, str) for name in listed):
        raise InvalidRequest("names must be the names of the classes, one string each")
    if len(set(listed)) < len(listed):
        raise InvalidRequest(f"names must differ from each other: {', '.join(listed):.200}")
    return listed


def _groups(groups: ArrayLike, rows: int) -> NDArray[np.int64]:
    array = np.asarray(groups)
    if array.dtype.kind == "O" and all(isinstance(group, str) for group in array.flat):
        array = array.astype(str)
    if array.dtype.kind not in "biuUS":
        raise InvalidRequest(f"groups must hold integers or strings, not {array.dtype}")
    if array.shape != (rows,):
        raise InvalidRequest(f"groups must be one value a row, [{rows:,}], not of shape {array.shape}")
    return _frozen(np.unique(array, return_inverse=True)[1].astype(np.int64))


_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    OverflowError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy raises for a file that is damaged, encrypted, pickled or claims absurd sizes."""


def _read_npz(path: Path) -> Mapping[str, Any]:
    try:
        # Opened here, since NumPy leaves a file that it cannot read open.
        with path.open("rb") as file:
            if file.peek(2)[:2] not in (b"", b"PK", b"\x93N"):
                raise InvalidRequest(f"{path} is not an .npz file; make one with numpy.savez(path, x=..., y=...)")
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InvalidRequest(f"{path} holds a single array: save both with numpy.savez(path, x=x, y=y)")
            # Arrays of other names are not read; None stands for them.
            return {name: archive[name] if name in ("x", "y", "groups", "names") else None for name in archive.files}
    except FileNotFoundError as error:
        raise InvalidRequest(f"there is no file {path}") from error
    except _UNREADABLE as error:
        raise InvalidRequest(f"{path} cannot be read as an .npz file: {error or type(error).__name__}") from error
