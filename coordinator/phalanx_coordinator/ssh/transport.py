"""From a record to the command that starts its worker: a transport is nothing but that. Pure.

``socket``: a daemon on this machine. ``forward``: one ssh process carries the daemon's streams and a forward from a socket
here to the one there. ``relay``: where the server forwards no sockets, the same bytes go over that session's standard
streams, by one small process on either end.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.ssh.command import Forward, ssh_command
from phalanx_coordinator.ssh.config import Destination

Route = Literal["socket", "forward", "relay"]
SOCKET = "worker.sock"
FAR_PARENT = "/tmp"
"""Where a worker behind ssh makes its private directory, unless its record says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What starts one daemon, and where it is then reached."""

    route: Route
    command: tuple[str, ...]
    """Takes the greeting and the lease on standard input; gives the ready line and beats on standard output."""
    socket: Path
    """On this machine."""


def routes(record: WorkerRecord, destination: Destination | None) -> tuple[Route, ...]:
    """The ways to try, best first. A person's own forwards for that host would come with one of ours, and listen."""
    if record.transport != "ssh":
        return ("socket",)
    if destination is not None and destination.forwards:
        return ("relay",)
    return ("forward", "relay")


def plan_launch(record: WorkerRecord, route: Route, near: Path, name: str, oversubscribe: bool) -> Launch:
    """The launch by ``route``. ``near`` is a private directory here; ``name`` that of a new one over there."""
    socket = near / SOCKET
    if route == "socket":
        command = [sys.executable, "-m", "phalanx_worker", *daemon_arguments(record, str(near), oversubscribe)]
        return Launch(route=route, command=tuple(command), socket=socket)
    far_directory = f"{record.directory or FAR_PARENT}/{name}"
    far_socket = f"{far_directory}/{SOCKET}"
    supervised = ["phalanx_worker.supervisor", *daemon_arguments(record, far_directory, oversubscribe)]
    if route == "forward":
        command = ssh_command(record, _far(record, supervised), Forward(near=socket, far=far_socket))
    else:
        through = ssh_command(record, _far(record, ["phalanx_worker.relay", far_socket, *supervised]))
        command = [sys.executable, "-P", "-m", "phalanx_coordinator.ssh.relay", str(socket), *through]
    return Launch(route=route, command=tuple(command), socket=socket)


def daemon_arguments(record: WorkerRecord, directory: str, oversubscribe: bool) -> list[str]:
    """What a daemon is told on its command line; nothing of it is secret."""
    arguments = ["--slots", str(record.slots), "--backend", record.backend, "--ordinal", str(record.device)]
    arguments += ["--directory", directory]
    return [*arguments, "--oversubscribe"] if oversubscribe else arguments


def _far(record: WorkerRecord, module: Sequence[str]) -> list[str]:
    """A module run by the record's Python; -P keeps what lies in that home directory out of the way."""
    assert record.python is not None
    return [record.python, "-P", "-m", *module]
