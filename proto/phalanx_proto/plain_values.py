"""Whether plain values, as JSON gives them, are of the kinds that the fields of a dataclass name; every fault is told.

Kinds are exact: a ``bool`` is no number, and a number with a fraction is not a whole one.
"""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

EXACT = 1 << 53
"""Whole numbers below it are Float64 values too."""
_TOLD = {
    int: "a whole number of 64 bits", float: "a number", bool: "true or false", str: "a text", Path: "a path",
    types.NoneType: "null",
}  # fmt: skip


def faults(kind: type[Any], values: object, of: str = "", special: Sequence[str] = ()) -> list[str]:
    """What keeps ``kind(**values)`` from being made of its kinds, a sentence each; ``special`` fields are no plain values.

    ``of`` stands before each name.
    """
    if not isinstance(values, Mapping):
        return [f"the {of.strip() or 'request'} must be an object with names and values, not {shown(values)}"]
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name not in special}
    found = [f"{of}{name!s:.40} is not known here; use the version that wrote it" for name in values if name not in fields][:5]
    for name, field in fields.items():
        if name not in values:
            if field.default is dataclasses.MISSING:
                found.append(f"{of}{name} is missing; use the version that wrote it")
        elif not fits(values[name], field.type):
            found.append(f"{of}{name} must be {told(field.type)}, not {shown(values[name])}")
    return found


def fits(value: object, kind: Any) -> bool:
    """Whether a value is of a kind: a plain type, a choice, or one of several."""
    origin = get_origin(kind)
    if origin is Literal:
        return type(value) is str and value in get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in get_args(kind))
    if kind is int:
        return type(value) is int and -(1 << 63) <= value < 1 << 64
    if kind is float:
        return type(value) is float or (type(value) is int and abs(value) <= EXACT)
    if kind is Path:
        return type(value) is str and value != "" and "\0" not in value
    return type(value) is kind


def plain_types(kind: Any) -> frozenset[type]:
    """The types of the values that a kind has; a choice is a text, and a whole number may stand for a float."""
    if get_origin(kind) in (Union, types.UnionType):
        return frozenset().union(*map(plain_types, get_args(kind)))
    if get_origin(kind) is Literal:
        return frozenset({str})
    return frozenset({float, int}) if kind is float else frozenset({kind})


def told(kind: Any) -> str:
    """A kind in words."""
    if get_origin(kind) is Literal:
        names = get_args(kind)
        return f"one of {', '.join(names)}" if len(names) > 1 else repr(names[0])
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(told, get_args(kind)))
    return _TOLD[kind]


def shown(value: object) -> str:
    """A value for a message: its beginning, or its type where it holds others."""
    return f"{value!r:.40}" if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
