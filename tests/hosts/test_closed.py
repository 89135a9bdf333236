"""Nothing of Phalanx listens on the network, and nobody else can talk to a worker: seen from both ends while one serves."""

import os
import secrets
import socket
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from phalanx_coordinator.members.launch import WorkerProcess
from phalanx_coordinator.members.remote_worker import RemoteWorker
from tests.hosts.lab import Host, Lab
from tests.hosts.machines import UIDS
from tests.hosts.workers import DEADLINES, shake, with_worker

LISTENING = "0A"
KNOCK = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print('open')"


def listening_ports(tables: Path) -> set[int]:
    """Ports of TCP listeners in a network namespace, from its ``/proc/…/net``."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in (tables / name).read_text().splitlines()[1:]]
    return {int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == LISTENING}


def listeners(processes: Iterable[psutil.Process]) -> list[str]:
    """What these processes listen on, other than Unix sockets."""
    return [str(c) for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]


def is_private(socket_file: Path) -> bool:
    mode, above = socket_file.lstat().st_mode, socket_file.parent.lstat().st_mode
    return stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600 and stat.S_IMODE(above) == 0o700


def texts(processes: Iterable[psutil.Process]) -> str:
    """Argument lists and environments."""
    return "\n".join("\n".join([*p.cmdline(), *(f"{k}={v}" for k, v in p.environ().items())]) for p in processes)


def far_socket(host: Host) -> tuple[Path, str]:
    """The worker's socket over there: as root sees it from here, and by its name there."""
    (found,) = host.tmp.glob("phalanx-*/worker.sock")
    return found, f"/tmp/{found.parent.name}/{found.name}"


def knock_as_another(path: str, host: Host | None) -> str:
    """Another user connects: to a socket here, or on a host."""
    if host is not None and host.machine is not None:
        done = host.machine.run(sys.executable, "-c", KNOCK, path, user="eve", check=False)
    else:
        switch = ["setpriv", f"--reuid={UIDS['eve']}", f"--regid={UIDS['eve']}", "--clear-groups"]
        python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
        done = subprocess.run([*switch, python, "-c", KNOCK, path], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("route", ["forward", pytest.param("relay", marks=pytest.mark.slow)])
def test_a_worker_that_serves_is_closed_to_all_others(apart: Lab, route: str) -> None:
    host = apart.hosts["alpha"]
    machine = host.machine
    assert machine is not None
    token, heard = secrets.token_hex(32), []
    ports_there = listening_ports(Path(f"/proc/{machine.init}/net"))

    async def look(process: WorkerProcess, worker: RemoteWorker) -> None:
        assert process.route == route
        await shake(worker, process.record)
        assert process.pid is not None
        first = psutil.Process(process.pid)
        near = [psutil.Process(), first, *first.children(recursive=True)]
        assert listeners(near) == []
        assert listeners(host.processes()) == []
        assert listening_ports(Path(f"/proc/{machine.init}/net")) == ports_there | {port}
        there, name = far_socket(host)
        here = Path(process.socket)
        assert is_private(here) and is_private(there)
        assert there.lstat().st_uid == there.parent.lstat().st_uid == UIDS["ada"]
        assert here.lstat().st_uid == os.getuid()
        assert "PermissionError" in knock_as_another(name, host)
        assert "PermissionError" in knock_as_another(str(here), None)
        with socket.socket(socket.AF_UNIX) as own:  # the knock is not refused for another reason
            own.connect(str(here))
        assert token not in texts([*near, *host.processes()])

    settings = {"AllowStreamLocalForwarding": "no"} if route == "relay" else {}
    with apart.server("alpha", LogLevel="DEBUG1", **settings) as there:
        port = int(there[1].partition("=")[2])
        record = apart.record("alpha", *there, "-v")
        with_worker(record, look, DEADLINES, lambda worker, line: heard.append(line), token=token)
    assert heard and token not in "\n".join(heard)
    logs = [path.read_text(errors="replace") for path in apart.folder.glob("sshd-*.log")]
    assert not any(token in text for text in logs)
