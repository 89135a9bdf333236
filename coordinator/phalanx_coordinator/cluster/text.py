"""The text format of an earlier system, read as if it had been TOML: ``ANER_CLUSTER 1`` and ``ANER_CLUSTER 2``. Pure.

The first line names the format. Every other line is a record, or in version 2 the one ``precision Float32|Float64`` line;
blank lines, and comments from a ``#`` that begins a line or follows a space, are skipped. Fields stand in this order, with
spaces or tabs between them, so none can hold a space:

    version 1    alias  local|ssh  endpoint  executable  slots
    version 2    alias  local|ssh  endpoint  executable  slots  backend  [weight]

* Version 1 has neither precision nor backend: it is read as float64 on ``cpu``, which is what its files were computed in.
* ``endpoint`` is an ssh destination, ``executable`` an absolute path on that machine: the Python of its Phalanx environment.
* A ``local`` record is this machine, so its endpoint is read and dropped, and so is its executable: ``-`` or an absolute path.
* An executable that was of the earlier system is no Phalanx; ``phalanx doctor`` says so, and ``phalanx enroll`` makes one.

The rules for values are those of the TOML reader (``record``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx_coordinator.cluster.record import Fault, is_absolute
from phalanx_proto.experiment import DType

WORD = "ANER_CLUSTER"
TRANSPORTS = ("local", "ssh")
NONE = "-"
"""Stands for an endpoint or an executable that a local record has none of."""

_FIELDS = ("name", "transport", "host", "python", "slots", "backend", "weight")
_COUNTS: Mapping[str, tuple[int, ...]] = {"1": (5,), "2": (6, 7)}
_SHAPES: Mapping[str, str] = {
    "1": "alias, local or ssh, endpoint, executable, slots",
    "2": "alias, local or ssh, endpoint, executable, slots, backend and perhaps a weight",
}
_PRECISIONS: Mapping[str, DType] = {"Float32": "float32", "Float64": "float64"}
_COMMENT = re.compile(r"(?:^|(?<=[ \t]))#.*")
_WHOLE = re.compile(r"[+-]?[0-9]{1,12}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")


@dataclass(frozen=True, kw_only=True)
class TextCluster:
    """What a text file says, in the shape of a TOML document; ``faults`` are those of the format alone."""

    precision: DType | None
    """None where it is missing or wrong, which is a fault."""
    tables: tuple[Mapping[str, Any], ...]
    lines: "TextLines"
    faults: tuple[Fault, ...]
    written: int
    """Records that stand there, with those of the wrong number of fields, which are no tables."""


class TextLines:
    """Line numbers of records whose keys share one line; the counterpart of ``lines.Lines``."""

    def __init__(self, records: Sequence[int]) -> None:
        self._records = records

    def top(self, key: str) -> int | None:
        """Nothing that the rules ask for stands alone."""
        return None

    def record(self, index: int, key: str | None = None) -> int | None:
        """The line of the record ``index`` (from 0), whatever the key."""
        return self._records[index] if index < len(self._records) else None


def is_text_format(text: str) -> bool:
    """Whether the first line says that ``text`` is of this format, whatever the version."""
    return text.split("\n", 1)[0].split()[:1] == [WORD]


def read_text(text: str) -> TextCluster:
    """The records of a text file and every fault of its layout."""
    first, *rest = text.split("\n")
    version = _COMMENT.sub("", first).split()[1:]
    if len(version) != 1 or version[0] not in _COUNTS:
        fault = Fault(1, f"the first line must be {WORD} 1 or {WORD} 2")
        return TextCluster(precision=None, tables=(), lines=TextLines(()), faults=(fault,), written=1)
    reader = _Reader(version[0])
    for number, line in enumerate(rest, start=2):
        words = _COMMENT.sub("", line).split()
        if words and words[0] == "precision":
            reader.take_precision(words[1:], number)
        elif words:
            reader.take_record(words, number)
    return reader.finish()


class _Reader:
    """Collects the lines of one file."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._precision: DType | None = "float64" if version == "1" else None
        self._precision_line: int | None = None
        self._tables: list[Mapping[str, Any]] = []
        self._lines: list[int] = []
        self._faults: list[Fault] = []
        self._written = 0

    def take_precision(self, words: Sequence[str], number: int) -> None:
        """The precision line: of version 2, and once."""
        if self._version == "1":
            text = f"version 1 has no precision line; it is float64, or write {WORD} 2 above and a backend in each record"
        elif self._precision_line is not None:
            text = f"precision is given in line {self._precision_line} already"
        elif len(words) == 1 and words[0] in _PRECISIONS:
            self._precision, text = _PRECISIONS[words[0]], ""
        else:
            text = "precision must be Float32 or Float64"
        self._precision_line = self._precision_line or number
        self._faults += [Fault(number, text)] if text else []

    def take_record(self, words: Sequence[str], number: int) -> None:
        """One record as a table; one with too few or too many fields is left out."""
        self._written += 1
        if len(words) not in _COUNTS[self._version]:
            counts = " or ".join(map(str, _COUNTS[self._version]))
            text = f"a worker is {counts} fields ({_SHAPES[self._version]}), but {len(words)} stand here"
            self._faults.append(Fault(number, text))
            return
        table: dict[str, Any] = dict(zip(_FIELDS, words, strict=False))
        table["slots"] = _whole(table["slots"])
        if "weight" in table:
            table["weight"] = _number(table["weight"])
        if table["transport"] == "local":
            python = table.pop("python")
            del table["host"]
            if python != NONE and not is_absolute(python):
                text = f"worker {self._written}: the executable must be an absolute path, or {NONE} for a local worker"
                self._faults.append(Fault(number, text))
        self._tables.append(table)
        self._lines.append(number)

    def finish(self) -> TextCluster:
        """All that was read."""
        if self._precision_line is None and self._precision is None:
            self._faults.append(Fault(None, "precision is missing; write a line: precision Float32 (or Float64)"))
        return TextCluster(
            precision=self._precision, tables=tuple(self._tables), lines=TextLines(self._lines),
            faults=tuple(self._faults), written=self._written,
        )  # fmt: skip


def _whole(word: str) -> int | str:
    """The number, or the word itself, which the rules then refuse."""
    return int(word) if _WHOLE.fullmatch(word) else word


def _number(word: str) -> float | str:
    return float(word) if _NUMBER.fullmatch(word) else word
