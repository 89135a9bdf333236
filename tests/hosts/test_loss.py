"""Whatever breaks between here and a worker behind ssh while it serves: the loss is named, and nothing is left anywhere."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from phalanx_coordinator.members.launch import WorkerProcess
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_proto.errors import WorkerLost
from tests.freezing import freeze
from tests.hosts.lab import Lab
from tests.hosts.workers import HASTY, shake, with_worker

ROUTES = ["forward", pytest.param("relay", marks=pytest.mark.slow)]


@dataclass
class Scene:
    """A worker that serves, and how to break it."""

    lab: Lab
    process: WorkerProcess
    silent: Path

    def kill_worker(self) -> None:
        self.daemon().kill()

    def kill_supervisor(self) -> None:
        for process in self.far("phalanx_worker.supervisor"):
            process.kill()

    def stop_worker(self) -> None:
        freeze(self.daemon().pid)

    def kill_ssh(self) -> None:
        for process in self.ssh():
            process.kill()

    def kill_sshd(self) -> None:
        """The session's own, on the far side."""
        sessions = [parent for process in self.far("phalanx_worker.supervisor") for parent in parents(process)]
        for parent in sessions:
            with contextlib.suppress(psutil.Error):  # one that ends takes the next with it
                if parent.name() == "sshd" and "-D" not in parent.cmdline():
                    parent.kill()

    def stop_ssh(self) -> None:
        for process in self.ssh():
            freeze(process.pid)

    def silence(self) -> None:
        self.silent.touch()

    def daemon(self) -> psutil.Process:
        (found,) = [p for p in self.far("phalanx_worker") if p.cmdline()[1:3] == ["-m", "phalanx_worker"]]
        return found

    def far(self, module: str) -> list[psutil.Process]:
        found = []
        for process in self.lab.hosts["alpha"].processes():
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                found += [process] if module in process.cmdline() else []
        return found

    def ssh(self) -> list[psutil.Process]:
        first = psutil.Process(self.process.pid)
        return [p for p in (first, *first.children(recursive=True)) if p.name() == "ssh"]


def parents(process: psutil.Process) -> list[psutil.Process]:
    """Those above a process, as far as they are still there when one asks for the next."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error, FileNotFoundError):
        above = process.parent()
        while above is not None:
            found.append(above)
            above = above.parent()
    return found


def lose(lab: Lab, route: str, folder: Path, act: Callable[[Scene], None]) -> WorkerLost:
    """Start a worker, break something, and wait for the news."""
    silent = folder / "silent"

    async def story(process: WorkerProcess, worker: RemoteWorker) -> WorkerLost:
        assert process.route == route
        await shake(worker, process.record)
        act(Scene(lab, process, silent))
        return await process.lost

    line = lab.delayed(1.0, silent_when=silent)
    if route == "relay":
        with lab.server("alpha", AllowStreamLocalForwarding="no") as there:
            return with_worker(lab.record("alpha", *there, *line), story, HASTY)
    return with_worker(lab.record("alpha", *line), story, HASTY)


def said(error: WorkerLost, message: str) -> None:
    assert error.message.startswith(f"worker alpha {message}"), str(error)
    assert "noticed at " in error.private and " s after it was ready" in error.private


@pytest.mark.parametrize("route", ROUTES)
def test_the_worker_is_killed(lab: Lab, tmp_path: Path, route: str) -> None:
    error = lose(lab, route, tmp_path, Scene.kill_worker)
    said(error, "was ended by SIGKILL; the kernel may have ended it for lack of memory")
    assert error.details["failure"] == "ended"


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_its_supervisor_is_killed(lab: Lab, tmp_path: Path, route: str) -> None:
    assert lose(lab, route, tmp_path, Scene.kill_supervisor).details["failure"] in ("ended", "tunnel_broken")


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_the_worker_is_stopped(lab: Lab, tmp_path: Path, route: str) -> None:
    said(lose(lab, route, tmp_path, Scene.stop_worker), "gave no sign of life for 2 s; it is stopped, or out of reach")


@pytest.mark.parametrize("route", ROUTES)
def test_ssh_is_killed(lab: Lab, tmp_path: Path, route: str) -> None:
    said(lose(lab, route, tmp_path, Scene.kill_ssh), "was lost: its ssh process on this machine was killed (SIGKILL)")


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_sshd_is_killed(lab: Lab, tmp_path: Path, route: str) -> None:
    said(lose(lab, route, tmp_path, Scene.kill_sshd), "was lost: the ssh connection to its machine broke")


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_ssh_is_stopped(lab: Lab, tmp_path: Path, route: str) -> None:
    said(lose(lab, route, tmp_path, Scene.stop_ssh), "gave no sign of life for 2 s")


@pytest.mark.parametrize("route", ROUTES)
def test_the_network_goes_silent(lab: Lab, tmp_path: Path, route: str) -> None:
    said(lose(lab, route, tmp_path, Scene.silence), "gave no sign of life for 2 s; it is stopped, or out of reach")


@pytest.mark.slow
def test_the_cable_is_pulled(apart: Lab) -> None:
    machine = apart.hosts["beta"].machine
    assert machine is not None

    async def story(process: WorkerProcess, worker: RemoteWorker) -> WorkerLost:
        machine.cable(up=False)
        return await process.lost

    try:
        error = with_worker(apart.record("beta"), story, HASTY)
    finally:
        machine.cable(up=True)
    assert "gave no sign of life" in error.message


def test_the_log_comes_back_and_the_last_words_are_the_owners_alone(lab: Lab, tmp_path: Path) -> None:
    heard: list[str] = []

    async def story(process: WorkerProcess, worker: RemoteWorker) -> WorkerLost:
        scene = Scene(lab, process, tmp_path)
        scene.daemon().send_signal(signal.SIGTERM)
        error = await process.lost
        await asyncio.sleep(0)
        return error

    error = with_worker(lab.record(), story, HASTY, lambda worker, line: heard.append(f"{worker}: {line}"))
    assert "alpha: phalanx worker: ended by SIGTERM" in heard
    assert "the last words of alpha:" in error.private and "ended by SIGTERM" in error.private
    assert "SIGTERM" not in error.message
