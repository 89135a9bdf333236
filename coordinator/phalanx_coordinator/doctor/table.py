"""What the doctor found, as a table for a person and as a document. Pure.

A row is a check and a column a machine; groups wider than the page go on below. A dash is what was not come to.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phalanx_coordinator.members.findings import Examination, Expected, Finding
from phalanx_coordinator.ssh.attempt import NOTICED
from phalanx_proto.errors import PhalanxError

WIDEST, NARROWEST = 30, 10
"""Characters of a machine's column."""
DASH = "-"
_STAGES: Mapping[str, frozenset[str]] = {
    "reached": frozenset(
        ("no_host", "connection_refused", "timed_out", "no_route", "closed_early", "bad_configuration")
    ),
    "host key": frozenset(("unknown_key", "changed_key")),
    "authentication": frozenset(("refused_key",)),
    "executable": frozenset((
        "no_login", "noisy_profile", "no_executable", "not_executable", "old_python", "not_phalanx", "incomplete", "ended",
    )),
}  # fmt: skip
"""In the order in which a machine is come to: the failures that stop there."""
_LATER = frozenset(("forward_refused", "not_ready"))
"""Failures after all of them; of any other nobody knows how far the machine was come to."""
Cell = Callable[[Finding, Expected], str]


def stage(finding: Finding, name: str) -> str:
    """How far a machine was come to: ``ok``, the failure, or a dash."""
    here = finding.record.here
    if here and name != "executable":
        return "this machine" if name == "reached" else DASH
    if finding.handshake is not None:
        return "ok"
    kind = finding.failure_kind
    stopped = next((place for place, kinds in _STAGES.items() if kind in kinds), None)
    if stopped is None:
        return "ok" if kind in _LATER and not here else DASH
    names = list(_STAGES)
    if names.index(name) < names.index(stopped):
        return "ok"
    word = kind.replace("_", " ")
    return (word.upper() if kind == "changed_key" else word) if name == stopped else DASH


def _version(field: str) -> Cell:
    def cell(finding: Finding, expected: Expected) -> str:
        if finding.handshake is None:
            return DASH
        found, wanted = getattr(finding.handshake, field) or "not installed", getattr(expected, field)
        if field == "source":
            return "as here" if found == wanted else f"{found[:12]}, not {wanted[:12]}"
        return found if found == wanted else f"{found}, here {wanted}"

    return cell


def _slots(finding: Finding, expected: Expected) -> str:
    found = f", {finding.handshake.slots_found} found" if finding.handshake is not None else ""
    return f"{finding.record.slots} asked{found}"


def _device(finding: Finding, expected: Expected) -> str:
    record = finding.record
    if finding.handshake is None:
        return DASH
    backend = finding.handshake.backend(record.backend)
    if backend is None or not backend.devices:
        return f"{record.backend}: {backend.reason if backend is not None and backend.reason else 'not found'}"
    if record.device >= len(backend.devices):
        return f"{record.backend} {record.device}: {len(backend.devices)} found"
    return record.backend if record.backend == "cpu" else f"{record.backend} {record.device}: {backend.devices[record.device]}"


def _round_trip(finding: Finding, expected: Expected) -> str:
    if finding.link is None:
        return "not measured" if finding.link_failure else DASH
    median, p95 = finding.link.round_trip_median, finding.link.round_trip_p95
    return f"{_milliseconds(median)}, p95 {_milliseconds(p95)} ms"


def _rate(way: str) -> Cell:
    def cell(finding: Finding, expected: Expected) -> str:
        return DASH if finding.link is None else megabytes(getattr(finding.link, way))

    return cell


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds < 0.01 else f"{seconds * 1e3:.1f}"


def megabytes(rate: float) -> str:
    """A bandwidth of so many bytes a second for a person: one unit, so that machines compare."""
    shown = rate / 1e6
    return f"{shown:,.0f} MB/s" if shown >= 10 else f"{shown:.2f} MB/s"


def _strays(finding: Finding, expected: Expected) -> str:
    report = finding.strays
    if report.reason:
        return DASH
    left = ", ".join(f"{stray.kind} {stray.pid}" for stray in report.left)
    removed = f"{len(report.removed)} removed" if report.removed else ""
    directories = _directories(report.directories - report.directories_removed, "left")
    cleared = _directories(report.directories_removed, "removed")
    return "; ".join(part for part in (left, removed, directories, cleared) if part) or "none"


def _directories(number: int, what: str) -> str:
    return f"{number} director{'y' if number == 1 else 'ies'} {what}" if number else ""


def _can_join(finding: Finding, expected: Expected) -> str:
    return "yes" if finding.can_join else "NO"


def _known(field: str) -> Cell:
    def cell(finding: Finding, expected: Expected) -> str:
        return DASH if finding.handshake is None else str(getattr(finding.handshake, field))

    return cell


ROWS: Sequence[tuple[str, Cell]] = (
    ("can join", _can_join),
    ("transport", lambda finding, expected: finding.record.transport),
    *((name, lambda finding, expected, name=name: stage(finding, name)) for name in _STAGES),
    ("Python", _version("python")),
    ("jax", _version("jax")),
    ("jaxlib", _version("jaxlib")),
    ("Phalanx", _version("phalanx")),
    ("source", _version("source")),
    ("slots", _slots),
    ("device", _device),
    ("self-test", _known("self_test")),
    ("calls go by", lambda finding, expected: finding.route or DASH),
    ("round trip", _round_trip),
    ("up", _rate("up")),
    ("down", _rate("down")),
    ("numeric class", lambda finding, expected: _known("numeric_class")(finding, expected)[:16]),
    ("strays", _strays),
)


def summary(found: Examination, width: int = 110) -> str:
    """The table, and below it what is wrong with whom and the next step."""
    columns = [
        (finding.record.name, [cell(finding, found.expected) for _, cell in ROWS]) for finding in found.findings
    ]  # fmt: skip
    labels = [label for label, _ in ROWS]
    parts = ["\n".join(_band(labels, band)) for band in _bands(columns, width - max(map(len, labels)) - 2)]
    return "\n\n".join([*parts, *_remarks(found)])


def _bands(columns: Sequence[tuple[str, list[str]]], width: int) -> list[list[tuple[str, list[str]]]]:
    """Columns that fit beside one another."""
    bands: list[list[tuple[str, list[str]]]] = [[]]
    room = width
    for column in columns:
        needed = _column_width(column) + 2
        if bands[-1] and needed > room:
            bands.append([])
            room = width
        bands[-1].append(column)
        room -= needed
    return bands


def _column_width(column: tuple[str, list[str]]) -> int:
    name, cells = column
    return max(len(name), NARROWEST, *(min(len(cell), WIDEST) for cell in cells))


def _band(labels: Sequence[str], columns: Sequence[tuple[str, list[str]]]) -> list[str]:
    widths = [max(map(len, labels)), *(_column_width(column) for column in columns)]
    lines = _lines(["", *(name for name, _ in columns)], widths)
    for number, label in enumerate(labels):
        lines += _lines([label, *(cells[number] for _, cells in columns)], widths)
    return lines


def _lines(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """One row of the table: as many lines as its longest cell takes."""
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped))
    rows = [[lines[n] if n < len(lines) else "" for lines in wrapped] for n in range(height)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _remarks(found: Examination) -> list[str]:
    remarks = [f"the group cannot start: {problem}" for problem in found.problems]
    for finding in found.findings:
        name = finding.record.name
        what = [] if finding.failure is None else [finding.failure.message]
        what += [f"{name}: {row['field']}: wanted {row['wanted']}, found {row['found']}" for row in finding.refusals]
        what += [finding.link_failure] if finding.link_failure else []
        step = found.steps.get(name, "")
        what += [f"next: {step}"] if step else _last_words(finding)
        remarks += ["\n".join(what)] if what else []
    notes = [note for finding in found.findings for note in finding.notes]
    return remarks + [f"note: {note}" for note in [*found.notes, *notes]]


def _last_words(finding: Finding) -> list[str]:
    """Where there is no next step, what the worker said is all there is to go by."""
    if finding.failure is None or not finding.failure.private:
        return []
    return ["".join(finding.failure.private.partition(NOTICED)[1:])]


def document(found: Examination) -> dict[str, Any]:
    """JSON values, for the owner of the group: next steps, which are private, are in it. What was not measured is null."""
    return {
        "can_join": found.can_join,
        "expected": dict(vars(found.expected)),
        "problems": list(found.problems),
        "notes": list(found.notes),
        "workers": [_worker(finding, found) for finding in found.findings],
    }


def _failure(kind: str, failure: PhalanxError) -> dict[str, str | None]:
    return {"kind": kind or None, "message": failure.message, "private": failure.private or None}


def _worker(finding: Finding, found: Examination) -> dict[str, Any]:
    handshake, link, failure = finding.handshake, finding.link, finding.failure
    return {
        **finding.record.public(),
        "can_join": finding.can_join,
        "stages": {name: stage(finding, name) for name in _STAGES},
        "failure": None if failure is None else _failure(finding.failure_kind, failure),
        "refusals": [dict(row) for row in finding.refusals],
        "next_step": found.steps.get(finding.record.name) or None,
        "notes": list(finding.notes),
        "handshake": None if handshake is None else {**vars(handshake), "backends": [vars(b) for b in handshake.backends]},
        "route": finding.route or None,
        "link": None if link is None else dict(vars(link)),
        "link_failure": finding.link_failure or None,
        "strays": None if finding.strays.reason else [vars(stray) for stray in finding.strays.strays],
        "strays_removed": list(finding.strays.removed),
        "stray_directories": finding.strays.directories,
        "stray_directories_removed": finding.strays.directories_removed,
    }
