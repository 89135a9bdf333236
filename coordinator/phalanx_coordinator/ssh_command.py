"""The command lines of ssh. Pure: values in, arguments out.

The system's own ssh is used, with the person's configuration and agent. What a cluster file gives as ``ssh_options`` comes
first, so that it wins; everything after it only adds what an unattended session needs.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx_coordinator.cluster_record import WorkerRecord
from phalanx_proto.errors import InvalidRequest

CONNECT_TIMEOUT = 15
"""Seconds for the connection and the server's first words."""
ALIVE_INTERVAL, ALIVE_COUNT = 5, 3
"""ssh ends after three unanswered questions, five seconds apart."""
NEAR_LONGEST = 107 if sys.platform == "linux" else 103
FAR_LONGEST = 103
"""Bytes of a Unix socket's path here, and on a machine whose system is not known."""

_UNATTENDED = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "UpdateHostKeys=no",
    f"ConnectTimeout={CONNECT_TIMEOUT}",
    "ConnectionAttempts=1",
    f"ServerAliveInterval={ALIVE_INTERVAL}",
    f"ServerAliveCountMax={ALIVE_COUNT}",
    "ControlMaster=no",
    "ControlPath=none",
    "ControlPersist=no",
    "RequestTTY=no",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "Tunnel=no",
    "LogLevel=INFO",
)
_NO_FORWARDS = ("ClearAllForwardings=yes",)
_FORWARD = ("ExitOnForwardFailure=yes", "StreamLocalBindUnlink=yes", "StreamLocalBindMask=0177")
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9/._+,=@-]*")
"""Paths in which ssh expands nothing and splits nothing."""


@dataclass(frozen=True, kw_only=True)
class Forward:
    """A Unix socket here that leads to one there."""

    near: Path
    far: str

    def __post_init__(self) -> None:
        for path, longest in ((str(self.near), NEAR_LONGEST), (self.far, FAR_LONGEST)):
            if not fits_a_socket(path, longest):
                raise InvalidRequest(
                    f"a socket's path must be absolute, at most {longest} bytes, and of letters, digits and /._+,=@- only"
                )


def fits_a_socket(path: str, longest: int = NEAR_LONGEST) -> bool:
    """Whether a socket can be bound at ``path`` and forwarded by ssh."""
    return len(os.fsencode(path)) <= longest and _PLAIN_PATH.fullmatch(path) is not None


def ssh_command(record: WorkerRecord, far: Sequence[str], forward: Forward | None = None) -> list[str]:
    """The command of ssh to the record's machine, running ``far`` there: one program with its arguments, in any shell.

    With ``forward`` the same connection carries a Unix socket; without one, no forwarding of the person's own
    configuration takes place either.
    """
    assert record.host is not None
    command = [*_beginning(record), *_set(_NO_FORWARDS if forward is None else _FORWARD)]
    if forward is not None:
        command += ["-L", f"{forward.near}:{forward.far}"]
    return [*command, "--", record.host, remote_line(far)]


def query_command(record: WorkerRecord) -> list[str]:
    """Prints the configuration that ssh would use, and connects to nothing."""
    assert record.host is not None
    return [*_beginning(record), "-G", "--", record.host]


def trial(record: WorkerRecord, *options: str, far: str = "true") -> str:
    """A command line that a person can paste to try the same connection by hand."""
    assert record.host is not None
    given = " ".join(shlex.quote(word) for word in (*record.ssh_options, *options))
    return " ".join(word for word in ("ssh", given, shlex.quote(record.host), far) if word)


def remote_line(far: Sequence[str]) -> str:
    """``far`` as the one line that the login shell there splits again: each word in single quotes where it needs any.

    sh, bash, zsh, csh and fish agree on them.
    """
    return " ".join(shlex.quote(word) for word in far)


def _beginning(record: WorkerRecord) -> list[str]:
    return ["ssh", *record.ssh_options, "-T", *_set(_UNATTENDED)]


def _set(options: Sequence[str]) -> list[str]:
    return [word for option in options for word in ("-o", option)]
