"""The command lines of ssh. Pure: values in, arguments out.

The system's own ssh is used, with the person's configuration and agent. What a cluster file gives as ``ssh_options`` comes
first, so that it wins; everything after it only adds what an unattended session needs.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_proto.errors import InvalidRequest
from phalanx_proto.ssh_options import FAR_LONGEST, FORWARD, NEAR_LONGEST, NO_FORWARD, UNATTENDED, fits_a_socket, option_words


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


def ssh_command(record: WorkerRecord, far: Sequence[str], forward: Forward | None = None) -> list[str]:
    """The command of ssh to the record's machine, running ``far`` there: one program with its arguments, in any shell.

    With ``forward`` the same connection carries a Unix socket; without one, no forwarding of the person's own
    configuration takes place either.
    """
    assert record.host is not None
    command = [*_beginning(record), *option_words(NO_FORWARD if forward is None else FORWARD)]
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


def enroll_command(record: WorkerRecord, file: Path | None = None, *, offline: bool = False) -> str:
    """The command that installs this version of Phalanx on the record's machine and updates its record.

    ``file`` is the cluster file, where the record itself does not know.
    """
    words = ["phalanx", "enroll", record.host or "HOST", "--name", record.name]
    words += [] if record.backend == "cpu" else ["--backend", record.backend]
    into = file or record.file
    words += ["--into", str(into)] if into is not None else []
    words += [f"--ssh-option={option}" for option in record.ssh_options]
    return " ".join(shlex.quote(word) for word in [*words, *(["--offline"] if offline else [])])


def enroll_step(record: WorkerRecord, file: Path | None = None) -> str:
    """What a person is told where that machine has no Phalanx of ours to start."""
    return f"install Phalanx there, into an environment of its own:\n    {enroll_command(record, file)}"


def remote_line(far: Sequence[str]) -> str:
    """``far`` as the one line that the login shell there splits again: each word in single quotes where it needs any.

    sh, bash, zsh, csh and fish agree on them.
    """
    return " ".join(shlex.quote(word) for word in far)


def _beginning(record: WorkerRecord) -> list[str]:
    return ["ssh", *record.ssh_options, "-T", *option_words(UNATTENDED)]
