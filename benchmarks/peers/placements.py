"""Phalanx's placements by short names: ``local:2``, or ``group:ls`` (one letter a member: l local, s socket)."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import phalanx
from phalanx_proto.execution import Execution
from phalanx_proto.experiment import DType

TRANSPORTS = {"l": "local", "s": "socket"}


@contextmanager
def execution(name: str, *, dtype: DType = "float64", oversubscribe: bool = False) -> Iterator[Execution]:
    """The execution of that name; a group's file lives as long as the block."""
    kind, _, what = name.partition(":")
    if kind == "local":
        yield phalanx.local(workers=int(what), dtype=dtype)
        return
    if kind != "group":
        raise ValueError(f"a placement is local:N or group:LETTERS, not {name!r}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "group.toml"
        file.touch(mode=0o600)
        file.write_text(_group(what, dtype, oversubscribe))
        yield phalanx.cluster(file)


def _group(letters: str, dtype: DType, oversubscribe: bool) -> str:
    head = f'version = 2\nprecision = "{dtype}"\noversubscribe = {str(oversubscribe).lower()}\n'
    members = (
        f'[[worker]]\nname = "member-{index}"\ntransport = "{TRANSPORTS[letter]}"\nslots = 1\nbackend = "cpu"\n'
        for index, letter in enumerate(letters)
    )
    return head + "".join(members)
