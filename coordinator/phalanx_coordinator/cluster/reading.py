"""Reading a cluster file: who is enrolled and how each machine is reached. Every fault is reported, with its line.

``read_cluster`` judges the file by owner and mode; ``parse_cluster`` is pure. The first line tells the text format of an
earlier system (``text``) from TOML; both go through the same rules. Endpoints of machines are private: they
are in the records but in no ``repr``, message or public form of one.
"""

import dataclasses
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from phalanx_coordinator.cluster.lines import Lines
from phalanx_coordinator.cluster.record import TRANSPORTS, Fault, RecordLines, WorkerRecord, read_record, unknown_keys
from phalanx_coordinator.cluster.text import TRANSPORTS as TEXT_TRANSPORTS
from phalanx_coordinator.cluster.text import is_text_format, read_text
from phalanx_proto.errors import InvalidCluster
from phalanx_proto.experiment import DTYPES, DType

FORMAT_VERSION = 2
MAX_BYTES = 1 << 20
MAX_RECORDS = 32

_KEYS = ("version", "precision", "oversubscribe", "worker")


@dataclass(frozen=True, kw_only=True)
class ClusterFile:
    """An enrolled group, as its file states it."""

    precision: DType
    oversubscribe: bool
    """More slots on a machine than its allocation are admitted, and the result says so."""
    workers: tuple[WorkerRecord, ...]
    """In the order of the file; none only where a reader asked for a group that may be empty."""
    path: Path | None = field(default=None, repr=False, compare=False)


def read_cluster(path: Path | str) -> ClusterFile:
    """The group in ``path``, an owner-only file.

    Raises ``InvalidCluster`` with every fault of owner, mode, syntax and content at once.
    """
    file = Path(path)
    data, faults = read_private(file)
    if data is None:
        raise InvalidCluster(faults)
    group = parse_cluster(data, path=file, faults=faults)
    return dataclasses.replace(group, workers=tuple(dataclasses.replace(record, file=file) for record in group.workers))


def parse_cluster(data: bytes, *, path: Path | None = None, faults: Sequence[str] = (), empty: bool = False) -> ClusterFile:
    """The group that ``data`` describes; ``faults`` of the file itself are reported together with those inside it.

    A group without workers is refused unless it may be ``empty``. Raises ``InvalidCluster``.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InvalidCluster([*faults, f"line {line}: this is not UTF-8 text"]) from None
    try:
        group, found = (_from_text if is_text_format(text) else _from_toml)(text, path, empty)
    except tomllib.TOMLDecodeError as error:
        raise InvalidCluster([*faults, _syntax_fault(str(error), text)]) from None
    if faults or found:
        ordered = sorted(found, key=lambda fault: fault.line or 0)
        raise InvalidCluster([*faults, *(fault.text for fault in ordered)])
    return group


def _from_toml(text: str, path: Path | None, empty: bool) -> tuple[ClusterFile, list[Fault]]:
    """The group of a TOML file, as far as it is sound, and all its faults; raises ``TOMLDecodeError``."""
    document, lines = tomllib.loads(text), Lines(text)
    faults = _check_top(document, lines)
    tables, precision = document.get("worker", []), document.get("precision")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        faults.append(Fault(lines.top("worker"), "worker must be a list of tables; write [[worker]] above each one"))
        tables = []
    elif not (tables or empty):
        faults.append(Fault(None, "there are no workers; write a [[worker]] table for each"))
    records, record_faults = _check_records(tables, precision, lines, TRANSPORTS)
    group = ClusterFile(
        precision=cast(DType, precision), oversubscribe=document.get("oversubscribe", False), workers=records, path=path
    )
    return group, faults + record_faults


def _from_text(text: str, path: Path | None, empty: bool) -> tuple[ClusterFile, list[Fault]]:
    """The group of a file in the text format, as far as it is sound, and all its faults."""
    read = read_text(text)
    records, faults = _check_records(read.tables, read.precision, read.lines, TEXT_TRANSPORTS)
    group = ClusterFile(precision=cast(DType, read.precision), oversubscribe=False, workers=records, path=path)
    if not (read.written or empty):
        faults.append(Fault(None, "there are no workers; write a line for each"))
    return group, [*read.faults, *faults]


def private_file_faults(*, mode: int, owner: int, me: int, path: Path) -> list[str]:
    """What is wrong with the owner or the mode of a file that only its owner may read or write."""
    quoted = shlex.quote(str(path))
    if owner != me:
        return [f"{quoted} belongs to another user (number {owner}); use a file of your own"]
    if stat.S_IMODE(mode) not in (0o600, 0o400):
        return [f"{quoted} has mode {stat.S_IMODE(mode):04o}; only you may have access: chmod 600 {quoted}"]
    return []


def read_private(path: Path) -> tuple[bytes | None, list[str]]:
    """The bytes and the faults of the file; no bytes where the content must not or cannot be read."""
    quoted = shlex.quote(str(path))
    try:
        # Never wait for the writer of a named pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return None, [f"{quoted} cannot be read: {error.strerror}"]
    found = os.fstat(descriptor)
    regular, mine = stat.S_ISREG(found.st_mode), found.st_uid == os.geteuid()
    if not (regular and mine):
        os.close(descriptor)
    if not regular:
        return None, [f"{quoted} is not a regular file"]
    faults = private_file_faults(mode=found.st_mode, owner=found.st_uid, me=os.geteuid(), path=path)
    if not mine:
        return None, faults
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        return None, [*faults, f"{quoted} is larger than {MAX_BYTES:,} bytes; a cluster file is a few lines a worker"]
    return data, faults


def _syntax_fault(message: str, text: str) -> str:
    """The message of tomllib ends with "(at line 3, column 5)" or "(at end of document)"."""
    where = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    if where is None:
        return f"this is not TOML: {message}"
    line = where[1] or max(1, len(text.splitlines()))
    return f"line {line}: this is not TOML: {message[: where.start()]}"


def _check_top(document: Mapping[str, Any], lines: Lines) -> list[Fault]:
    faults = unknown_keys(document, _KEYS, "", lines.top)
    version = document.get("version")
    if version is None:
        faults.append(Fault(None, f"version is missing; write: version = {FORMAT_VERSION}"))
    elif type(version) is not int or version != FORMAT_VERSION:
        faults.append(Fault(lines.top("version"), f"version must be {FORMAT_VERSION}, not {version!r:.40}"))
    precision = document.get("precision")
    if precision is None:
        faults.append(Fault(None, 'precision is missing; write: precision = "float32" (or "float64")'))
    elif precision not in DTYPES:
        wanted = " or ".join(DTYPES)
        faults.append(Fault(lines.top("precision"), f"precision must be {wanted}, not {precision!r:.40}"))
    if not isinstance(document.get("oversubscribe", False), bool):
        faults.append(Fault(lines.top("oversubscribe"), "oversubscribe must be true or false"))
    return faults


def _check_records(
    tables: Sequence[Mapping[str, Any]], precision: object, lines: RecordLines, transports: tuple[str, ...]
) -> tuple[tuple[WorkerRecord, ...], list[Fault]]:
    faults = []
    if len(tables) > MAX_RECORDS:
        text = f"there are {len(tables)} workers; at most {MAX_RECORDS} can be enrolled"
        faults.append(Fault(lines.record(MAX_RECORDS), text))
    kept = tables[:MAX_RECORDS]
    read = [read_record(table, index, precision, lines, transports) for index, table in enumerate(kept)]
    faults += [fault for _, found in read for fault in found]
    faults += _duplicate_names(kept, lines)
    return tuple(record for record, _ in read if record is not None), faults


def _duplicate_names(tables: Sequence[Mapping[str, Any]], lines: RecordLines) -> list[Fault]:
    """Names that differ only by case count as equal: they become names of files."""
    first: dict[str, int] = {}
    faults = []
    for index, table in enumerate(tables):
        name = table.get("name")
        if not isinstance(name, str):
            continue
        before = first.setdefault(name.casefold(), index)
        if before != index:
            text = f"the name {name!r:.80} is taken by worker {before + 1} of this file"
            faults.append(Fault(lines.record(index, "name"), text))
    return faults
