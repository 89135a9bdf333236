"""Phalanx's placements by short names: ``local:2``, or ``group:ls`` (one letter a member).

l local, s socket, f ssh with a forward, r ssh with a relay; the last two over loopback, to an sshd that lives as long as
the block. ``group:ff@10`` makes each round trip to them 10 ms longer.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import phalanx
from benchmarks.peers.shares import Shares, shares
from phalanx_proto.execution import Execution
from phalanx_proto.experiment import DType
from tests.hosts.lab import NAMES, Lab, open_lab

TRANSPORTS = {"l": "local", "s": "socket", "f": "ssh", "r": "ssh"}


@contextmanager
def execution(
    name: str, *, dtype: DType = "float64", oversubscribe: bool = False, share: float | None = None
) -> Iterator[Execution]:
    """The execution of that name; a group's file, and its sshd, live as long as the block.

    With ``share`` this process, ssh, sshd and each member behind ssh have so much of a processor, and no more.
    """
    kind, _, what = name.partition(":")
    if kind == "local":
        yield phalanx.local(workers=int(what), dtype=dtype)
        return
    if kind != "group":
        raise ValueError(f"a placement is local:N or group:LETTERS, not {name!r}")
    letters, _, milliseconds = what.partition("@")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ways = Ways(float(milliseconds or 0))
        if share is not None:
            ways.shares = stack.enter_context(shares(share))
        if set(letters) & set("fr"):
            ways.lab = stack.enter_context(open_lab(isolated=False))
            if ways.shares is not None:
                for server in ways.lab.servers:
                    ways.shares.join("sshd", server.pid)
        if "r" in letters:
            assert ways.lab is not None
            ways.closed = stack.enter_context(ways.lab.server("alpha", AllowStreamLocalForwarding="no"))
        file = Path(folder) / "group.toml"
        file.touch(mode=0o600)
        file.write_text(_group(letters, dtype, oversubscribe, ways))
        yield phalanx.cluster(file)
        phalanx.shutdown()


@dataclass
class Ways:
    """How members behind ssh are reached."""

    milliseconds: float
    lab: Lab | None = None
    shares: Shares | None = None
    closed: tuple[str, ...] = field(default=())
    """Options that lead to an sshd which forwards no sockets."""

    def lines(self, letter: str, index: int) -> str:
        """The private keys of one record."""
        if self.lab is None or letter not in "fr":
            return ""
        far = self.lab.delayed(self.milliseconds) if self.milliseconds else ()
        record = self.lab.record("alpha" if letter == "r" else NAMES[index % 3], *far, *(self.closed if letter == "r" else ()))
        python = record.python if self.shares is None else self.shares.command(f"member-{index}", record.python or "")
        options = ", ".join(f"'{option}'" for option in record.ssh_options)
        return f'host = "{record.host}"\npython = "{python}"\nssh_options = [{options}]\n'


def _group(letters: str, dtype: DType, oversubscribe: bool, ways: Ways) -> str:
    head = f'version = 2\nprecision = "{dtype}"\noversubscribe = {str(oversubscribe).lower()}\n'
    members = (
        f'[[worker]]\nname = "member-{index}"\ntransport = "{TRANSPORTS[letter]}"\nslots = 1\nbackend = "cpu"\n'
        + ways.lines(letter, index)
        for index, letter in enumerate(letters)
    )
    return head + "".join(members)
