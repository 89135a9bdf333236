"""One ``[[worker]]`` table: its value, and all that can be wrong with it."""

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from phalanx_proto.execution import Backend
from phalanx_proto.ssh_options import conflicts

Transport = Literal["local", "socket", "ssh"]
TRANSPORTS: tuple[str, ...] = get_args(Transport)
BACKENDS: tuple[str, ...] = get_args(Backend)
MAX_SLOTS = 256
MAX_DEVICE = 1023
LONGEST_DIRECTORY = 50
"""Bytes that leave room for the rest of a socket's path below it, on any system."""

_DIRECTORY = re.compile(rf"/[A-Za-z0-9/._+,=@-]{{0,{LONGEST_DIRECTORY - 1}}}")
_DIRECTORY_RULE = (
    f"must be an absolute path on that machine, of letters, digits and /._+,=@- only, at most {LONGEST_DIRECTORY} bytes"
)
_NAME = re.compile(r"[A-Za-z0-9-]{1,63}")
_ENDPOINT_KEYS = ("host", "python", "ssh_options", "directory")
_KEYS = ("name", "transport", "slots", "backend", "device", "weight", *_ENDPOINT_KEYS)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and the line where; None where nothing stands there."""

    line: int | None
    message: str

    @property
    def text(self) -> str:
        """The sentence for the person."""
        return self.message if self.line is None else f"line {self.line}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class WorkerRecord:
    """One enrolled worker. Its name is public; how it is reached is private and not in its ``repr``."""

    name: str
    transport: Transport
    slots: int = 1
    """CPU engines; 1 for an accelerator."""
    backend: Backend = "cpu"
    device: int = 0
    """Ordinal of the accelerator."""
    weight: float = 1.0
    """Relative share of each batch."""
    host: str | None = field(default=None, repr=False)
    """What ssh is given as destination; None but for ssh. So are the next ones."""
    python: str | None = field(default=None, repr=False)
    """Absolute path of the executable on that machine."""
    ssh_options: tuple[str, ...] = field(default=(), repr=False)
    """Arguments for ssh, before all others."""
    directory: str | None = field(default=None, repr=False)
    """Where on that machine the worker makes its private directory; None for /tmp."""
    file: Path | None = field(default=None, repr=False, compare=False)
    """The cluster file that it was read from; None where it is of none. Private, and no part of the record."""

    @property
    def here(self) -> bool:
        """Whether its slots are slots of the coordinator's own machine."""
        return self.transport != "ssh"

    def public(self) -> dict[str, str | int | float]:
        """What a manifest, a status or a result may say of it."""
        return {
            "name": self.name,
            "transport": self.transport,
            "slots": self.slots,
            "backend": self.backend,
            "device": self.device,
            "weight": self.weight,
        }


class RecordLines(Protocol):
    """Where the keys of the records stand."""

    def record(self, index: int, key: str | None = None) -> int | None:
        """The line of a key of the record ``index`` (from 0)."""


def read_record(
    table: Mapping[str, Any], index: int, precision: object, lines: RecordLines, transports: tuple[str, ...] = TRANSPORTS
) -> tuple[WorkerRecord | None, list[Fault]]:
    """The record in one table, ``index`` from 0, or None and all its faults. Pure.

    ``transports`` are those that the file's format can name.
    """
    reader = _Reader(table, index, lines)
    reader.check_keys()
    name = reader.take("name", None, _is_name, "must be 1 to 63 letters, digits and hyphens")
    transport = reader.choose("transport", None, transports)
    backend = reader.choose("backend", "cpu", BACKENDS)
    slots = reader.take("slots", 1, _is_slots, f"must be a whole number from 1 to {MAX_SLOTS}")
    device = reader.take("device", 0, _is_device, f"must be a whole number from 0 to {MAX_DEVICE}")
    weight = reader.take("weight", 1, _is_weight, "must be a positive, finite number")
    if backend == "mps" and precision == "float64":
        reader.fault("backend", "mps has no float64; give the group the precision float32, or take this worker out")
    # Over ssh one record may stand for several accelerators of a machine; that is for the version that starts it.
    if backend in ("cuda", "mps") and transport != "ssh" and slots not in (None, 1):
        reader.fault("slots", f"an accelerator is one slot; write slots = 1 and one record for each {backend} device")
    if backend == "cpu" and device not in (None, 0):
        reader.fault("device", "the cpu backend has one device, 0; device is for cuda and mps")
    endpoint = _read_endpoint(reader, transport)
    if reader.faults:
        return None, reader.faults
    record = WorkerRecord(
        name=name,
        transport=transport,
        slots=slots,
        backend=backend,
        device=device,
        weight=float(weight),
        host=endpoint.get("host"),
        python=endpoint.get("python"),
        ssh_options=tuple(endpoint.get("ssh_options", ())),
        directory=endpoint.get("directory") or None,
    )
    return record, []


def unknown_keys(table: Mapping[str, Any], known: Collection[str], who: str, line: Callable[[str], int | None]) -> list[Fault]:
    """A fault for each key that nobody reads, with the likeliest meaning."""
    faults = []
    for key in table:
        if key in known:
            continue
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
        faults.append(Fault(line(key), f"{who}unknown key {key!r:.80}{hint}"))
    return faults


class _Reader:
    """Takes keys out of one table and collects what is wrong with them. A faulty key reads as None."""

    def __init__(self, table: Mapping[str, Any], index: int, lines: RecordLines) -> None:
        self.faults: list[Fault] = []
        self._table, self._index, self._lines = table, index, lines
        name = table.get("name")
        self._who = f"worker {name}: " if _is_name(name) else f"worker {index + 1}: "

    def fault(self, key: str, message: str) -> None:
        self.faults.append(Fault(self._lines.record(self._index, key), self._who + message))

    def check_keys(self) -> None:
        self.faults += unknown_keys(self._table, _KEYS, self._who, lambda key: self._lines.record(self._index, key))

    def has(self, key: str) -> bool:
        return key in self._table

    def take(self, key: str, default: Any, valid: Callable[[object], bool], rule: str) -> Any:
        """The value of ``key``; the rule, never the value, is in the fault, for a value may be private."""
        value = self._table.get(key, default)
        if key not in self._table and default is None:
            self.fault(key, f"{key} is missing; it {rule}")
        elif not valid(value):
            self.fault(key, f"{key} {rule}")
            return None
        return value

    def choose(self, key: str, default: str | None, choices: tuple[str, ...]) -> Any:
        """The value of ``key`` if it is one of ``choices``."""
        rule = f"must be one of {', '.join(choices)}"
        value = self._table.get(key)
        near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) and value not in choices else []
        return self.take(key, default, lambda v: v in choices, rule + (f"; did you mean {near[0]}?" if near else ""))


def _read_endpoint(reader: _Reader, transport: object) -> dict[str, Any]:
    """The private fields, which ssh alone has."""
    if transport != "ssh":
        for key in _ENDPOINT_KEYS:
            if transport in TRANSPORTS and reader.has(key):
                reader.fault(key, f"{key} is for transport ssh; a {transport} worker runs on this machine")
        return {}
    options = reader.take("ssh_options", [], _is_options, "must be a list of strings, at most 64")
    for name in conflicts(options or []):
        reader.fault("ssh_options", f"ssh_options must not have {name}, for with it ssh does not run the worker; take it out")
    return {
        "host": reader.take("host", None, _is_host, "must be an ssh destination: an alias or user@host"),
        "python": reader.take("python", None, is_absolute, "must be an absolute path on that machine"),
        "ssh_options": options,
        "directory": reader.take("directory", "", _is_directory, _DIRECTORY_RULE),
    }


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_slots(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_SLOTS


def _is_device(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_DEVICE


def _is_weight(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and value > 0
    except OverflowError:  # an integer beyond Float64
        return False


def _is_host(value: object) -> bool:
    """A destination that ssh cannot take for an option, and that is one word."""
    return isinstance(value, str) and 0 < len(value) <= 255 and value[0] != "-" and value.isprintable() and (" " not in value)


def is_absolute(value: object) -> bool:
    """Whether it is an absolute path that can be shown on one line."""
    return isinstance(value, str) and value.startswith("/") and len(value) <= 4096 and value.isprintable()


def _is_directory(value: object) -> bool:
    return value == "" or (isinstance(value, str) and _DIRECTORY.fullmatch(value) is not None)


def _is_options(value: object) -> bool:
    return isinstance(value, list) and len(value) <= 64 and all(isinstance(v, str) and "\0" not in v for v in value)
