"""A cluster file as TOML text: written whole, or changed by one record with everything else left as it was. Pure.

What is written reads back equal. A change of a file that somebody wrote by hand is proved before it is returned: it is read
again and must hold the wanted record and the other ones untouched.
"""

import dataclasses
import json
from collections.abc import Collection, Sequence

from phalanx_coordinator.cluster.lines import is_record_header, is_table_header
from phalanx_coordinator.cluster.reading import FORMAT_VERSION, ClusterFile, parse_cluster
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.cluster.text import is_text_format
from phalanx_proto.errors import InvalidCluster, InvalidRequest
from phalanx_proto.experiment import DType

Value = str | int | float | tuple[str, ...]


def header(precision: DType, oversubscribe: bool = False) -> str:
    """The lines above the first record."""
    lines = [f"version = {FORMAT_VERSION}", f'precision = "{precision}"', *(["oversubscribe = true"] if oversubscribe else [])]
    return "\n".join(lines) + "\n"


def group_text(group: ClusterFile) -> str:
    """The whole file."""
    return header(group.precision, group.oversubscribe) + "".join(f"\n{record_text(record)}" for record in group.workers)


def record_text(record: WorkerRecord, leave_out: Collection[str] = ()) -> str:
    """One ``[[worker]]`` table. What is the default is left out, but for the slots, and so are the keys ``leave_out``."""
    lines = record_lines(record).items()
    return "[[worker]]\n" + "".join(f"{key} = {value}\n" for key, value in lines if key not in leave_out)


def record_lines(record: WorkerRecord) -> dict[str, str]:
    """The keys of a record, each with its value as TOML."""
    shown = {"name", "transport", "slots"}
    keys = [field for field in dataclasses.fields(record) if field.compare]
    fields = ((field.name, getattr(record, field.name), field.default) for field in keys)
    return {name: _toml(value) for name, value, default in fields if name in shown or value != default}


def with_record(text: str, record: WorkerRecord) -> str:
    """The file ``text`` with ``record`` in the place of the one of that name, or after all others.

    Comments and the rest stay; keys of the old record that the new one has no value for go. Raises ``InvalidCluster`` for a
    file that cannot be read, ``InvalidRequest`` where it is laid out so that a line cannot be changed safely.
    """
    group = _read(text)
    names = [worker.name for worker in group.workers]
    if record.name in names:
        place = names.index(record.name)
        wanted = [*group.workers[:place], record, *group.workers[place + 1 :]]
        start, end = _extent(text, place, len(names))
        lines = text.split("\n")
        changed = "\n".join([*lines[:start], *_updated(lines[start:end], record), *lines[end:]])
    else:
        wanted = [*group.workers, record]
        changed = f"{text.rstrip()}\n\n{record_text(record)}"
    return _proved(changed, group, wanted)


def without_record(text: str, name: str) -> str:
    """The file ``text`` without the record ``name``; a comment directly above it goes too. Raises as ``with_record``."""
    group = _read(text)
    names = [worker.name for worker in group.workers]
    if name not in names:
        raise InvalidRequest(f"there is no worker {name!r:.80} in this file; it has {', '.join(names) or 'none'}")
    place = names.index(name)
    start, end = _extent(text, place, len(names))
    lines = text.split("\n")
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    while end < len(lines) and not lines[end].strip():
        end += 1
    changed = "\n".join([*lines[:start], *lines[end:]]).rstrip() + "\n"
    return _proved(changed, group, [worker for worker in group.workers if worker.name != name])


def _read(text: str) -> ClusterFile:
    if is_text_format(text):
        raise InvalidRequest("this file is of the earlier text format; make it TOML first: phalanx cluster convert FILE")
    return parse_cluster(text.encode(), empty=True)


def _proved(changed: str, group: ClusterFile, wanted: Sequence[WorkerRecord]) -> str:
    """``changed`` if it says what it should."""
    try:
        found = parse_cluster(changed.encode(), empty=True)
    except InvalidCluster as error:
        raise InvalidRequest(f"the record cannot be written into this file: {error.message}") from None
    if found != dataclasses.replace(group, workers=tuple(wanted)):
        raise InvalidRequest("this file is laid out in a way that Phalanx does not change; write the record by hand")
    return changed


def _extent(text: str, place: int, count: int) -> tuple[int, int]:
    """Lines [start, end) of the record ``place``: from its header to its last line that is neither blank nor a comment."""
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if is_record_header(line)]
    if len(starts) != count:
        raise InvalidRequest(
            "not every worker of this file stands below a [[worker]] line of its own; write the change by hand"
        )
    start = starts[place]
    following = (number for number, line in enumerate(lines) if number > start and is_table_header(line))
    end = next(following, len(lines))
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return start, end


def _updated(lines: Sequence[str], record: WorkerRecord) -> list[str]:
    """The lines of one record with new values; a comment behind a value that changed stays with it."""
    values = record_lines(record)
    found, previous = [lines[0]], ""
    for line in lines[1:]:
        key, sign, rest = line.partition("=")
        key = key.strip()
        if not line.strip() or line.lstrip().startswith("#"):
            found.append(line)
        elif sign and key in values:
            value, comment = values.pop(key), _comment(rest)
            same = rest.removesuffix(comment.strip()).strip() == value
            found.append(line if same else f"{key} = {value}{comment}")
            previous = key
        elif not sign or not key.replace("_", "").isalnum():
            raise InvalidRequest(
                f"the value of {previous or 'a key'} takes several lines in this file; write the record by hand"
            )
    return found + [f"{key} = {value}" for key, value in values.items()]


def _comment(rest: str) -> str:
    """What follows a value on its line, if it is a comment for certain."""
    value, sign, comment = rest.rpartition("#")
    certain = sign and not any(mark in comment for mark in "\"'")
    return f"  #{comment}" if certain and value.strip() else ""


def _toml(value: Value) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_quoted, value))}]"
    if isinstance(value, float) and value.is_integer() and value < 1e15:
        return str(int(value))
    return repr(value)


def _quoted(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for the one control character that JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
