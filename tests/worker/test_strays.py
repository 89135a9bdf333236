"""Left-over workers: who counts as one, and that a stopped orphan goes while the workers of living jobs stay."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from phalanx_worker import stray_directories, strays
from phalanx_worker.strays import Seen, Stray, end, find_strays, look
from tests.freezing import freeze
from tests.worker.daemons import TOKEN, until

ME, OTHER = 1000, 1001
PYTHON = "/opt/p/bin/python"


def seen(pid: int, parent: int, name: str, *command: str, user: int = ME, terminal: bool = False) -> Seen:
    return Seen(pid=pid, parent=parent, user=user, name=name, command=command, terminal=terminal, created=float(pid))


def python(pid: int, parent: int, *module: str, user: int = ME) -> Seen:
    return seen(pid, parent, "python3", PYTHON, "-P", "-m", *module, user=user)


INIT = seen(1, 0, "systemd", "/sbin/init", user=0)
SSHD = [INIT, seen(10, 1, "sshd", "sshd: /usr/sbin/sshd", user=0), seen(11, 10, "sshd", "sshd: me@notty")]
DAEMON = "phalanx_worker"
ENGINE = "phalanx_worker.engine_process"
SHELL = ("sh", "sh", "-c", "exec")


def found(*processes: Seen) -> list[tuple[int, str, int]]:
    return [(stray.pid, stray.kind, stray.processes) for stray in find_strays(processes, ME)]


@pytest.mark.parametrize(
    "living",
    [
        [*SSHD, python(20, 11, DAEMON), python(21, 20, ENGINE)],
        [*SSHD, seen(15, 11, *SHELL), python(20, 15, DAEMON)],
        [*SSHD, seen(15, 11, *SHELL), python(19, 15, "phalanx_worker.relay"), python(20, 19, DAEMON)],
        [INIT, seen(15, 1, "python3", PYTHON, "train.py"), python(20, 15, DAEMON), python(21, 15, ENGINE)],
        [INIT, python(15, 1, "phalanx", "fit"), python(20, 15, DAEMON)],
        [INIT, seen(12, 1, "tmux: server", "tmux"), seen(13, 12, "bash", "-bash", terminal=True), python(20, 13, DAEMON)],
        [
            INIT,
            seen(12, 1, "systemd", "systemd", "--user"),
            seen(15, 12, "jupyter-lab", PYTHON, "jupyter"),
            python(20, 15, DAEMON),
        ],
        [seen(1, 0, "python3", "python3", "train.py"), python(20, 1, DAEMON)],
        [INIT, python(15, 1, "phalanx_coordinator.jobs.run_job", "job"), python(20, 15, DAEMON), python(21, 15, ENGINE)],
        [
            INIT,
            python(15, 1, "phalanx", "serve"),
            python(19, 15, "phalanx_coordinator.ssh.relay"),
            seen(20, 19, "ssh", "ssh", DAEMON),
        ],
        [INIT, seen(20, 1, "ssh", "ssh", "--", "peer", f"{PYTHON} -P -m phalanx_worker.strays --json")],
        [INIT, seen(20, 1, "ssh", "ssh", "peer")],
        [INIT, python(20, 999, DAEMON)],
        [INIT, python(20, 0, DAEMON)],
        [INIT, python(20, 1, "phalanx_worker.strays", "--json")],
        [INIT, python(20, 1, "phalanx_workers")],
        [INIT, seen(20, 1, "python3")],
        [INIT, python(20, 1, DAEMON, user=OTHER)],
    ],
    ids=lambda processes: f"{processes[-1].command[-1:]}-{len(processes)}",
)
def test_a_living_job_has_no_strays(living: list[Seen]) -> None:
    assert found(*living) == []


def test_an_orphan_is_one_stray_with_all_below_it() -> None:
    family = [python(20, 1, DAEMON), python(21, 20, ENGINE), python(22, 20, ENGINE), seen(23, 21, "python3")]
    assert found(INIT, *family) == [(20, "daemon", 4)]


def test_each_orphan_counts_for_itself() -> None:
    assert found(INIT, python(20, 1, ENGINE), python(21, 1, "phalanx_worker.supervisor"), python(22, 21, DAEMON)) == [
        (20, "engine", 1),
        (21, "supervisor", 2),
    ]


def test_a_shell_that_lost_its_session_owns_nothing() -> None:
    assert found(INIT, seen(15, 1, *SHELL), python(20, 15, DAEMON)) == [(20, "daemon", 1)]


def test_orphans_fall_to_a_users_own_manager_or_the_first_of_a_container() -> None:
    manager = seen(12, 1, "systemd", "/usr/lib/systemd/systemd", "--user")
    assert found(INIT, manager, python(20, 12, DAEMON)) == [(20, "daemon", 1)]
    assert found(seen(1, 0, "sleep", "sleep", "infinity"), python(20, 1, DAEMON)) == [(20, "daemon", 1)]


def test_the_near_end_of_a_tunnel_counts() -> None:
    ssh = seen(20, 1, "ssh", "ssh", "-T", "--", "peer", f"{PYTHON} -P -m phalanx_worker.supervisor --slots 1")
    assert found(INIT, ssh, python(21, 1, "phalanx_coordinator.ssh.relay")) == [(20, "ssh", 1), (21, "relay", 1)]


ORPHAN_MAKER = """
import subprocess, sys, time
daemon = subprocess.Popen(
    [sys.executable, "-m", "phalanx_worker", "--directory", sys.argv[1]],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True)
daemon.stdin.write('{"token": "%s", "lease": 600}\\n' % sys.argv[2])
daemon.stdin.flush()
daemon.stdout.readline()
print(daemon.stdout.readline(), end="", flush=True)
time.sleep(600)
"""


@pytest.fixture
def owner_and_daemon() -> Iterator[tuple["subprocess.Popen[str]", psutil.Process, Path]]:
    """A process that owns a daemon, the daemon, and the daemon's private directory."""
    directory = Path(tempfile.mkdtemp(prefix="phalanx-"))
    command = [sys.executable, "-c", ORPHAN_MAKER, str(directory), TOKEN]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        ready = json.loads(owner.stdout.readline())
        daemon = psutil.Process(ready["pid"])
        yield owner, daemon, directory
    finally:
        owner.kill()
        owner.wait()
        if owner.stdout is not None:
            owner.stdout.close()
        with contextlib.suppress(psutil.Error, UnboundLocalError):
            daemon.kill()
            daemon.wait(10)


def of(pid: int) -> list[Stray]:
    """The strays that this one process makes; other runs on this machine have their own."""
    return [stray for stray in find_strays(look(), os.getuid()) if stray.pid == pid]


def test_a_stopped_orphan_is_found_and_ended(
    owner_and_daemon: tuple["subprocess.Popen[str]", psutil.Process, Path],
) -> None:
    owner, daemon, directory = owner_and_daemon
    assert of(daemon.pid) == []
    freeze(daemon.pid)
    assert of(daemon.pid) == []
    owner.kill()
    owner.wait()
    until(lambda: bool(of(daemon.pid)))
    (stray,) = of(daemon.pid)
    assert (stray.kind, stray.stopped) == ("daemon", True)
    assert end([Stray(pid=stray.pid, kind="daemon", processes=1, started=stray.started - 60, stopped=True)]) == []
    assert psutil.pid_exists(daemon.pid), "another process of that number is not a stray"
    assert end([stray]) == []
    until(lambda: of(daemon.pid) == [])
    assert not directory.exists()


def test_the_program_prints_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lonely = [INIT, python(20, 1, DAEMON, user=os.getuid())]
    monkeypatch.setattr(strays, "look", lambda: lonely)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(stray_directories, "find", lambda places: [])
    assert strays.main(["--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = {"pid": 20, "kind": "daemon", "processes": 1, "started": 20.0, "stopped": False}
    assert printed == {"strays": [expected], "removed": [], "directories": 0, "directories_removed": 0}
    monkeypatch.setattr(strays, "end", lambda strays: [])
    assert strays.main(["--clean", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == [20]
    monkeypatch.setattr(strays, "end", lambda strays: [20])
    assert strays.main(["--clean"]) == 1
    assert capsys.readouterr().out == "daemon 20, 1 processes: there\n"


def test_one_that_goes_by_itself_meanwhile_is_no_stray(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([[INIT, python(20, 1, DAEMON)], [INIT]])
    monkeypatch.setattr(strays, "look", lambda: next(looks))
    assert strays.confirmed(ME, second_look=0.0) == []


def test_it_imports_no_jax() -> None:
    code = "import sys, phalanx_worker.strays; print('jax' in sys.modules, 'grpc' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["False", "False"]
