"""Jobs that outlive who started them: real processes, a real terminal, real signals, and nothing left behind."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import phalanx
from phalanx.job_handles import DirectoryJob
from phalanx_proto import job_files, job_lock
from phalanx_proto.errors import Cancelled, InvalidExperiment, InvalidJob, JobBusy, PhalanxError, WorkerLost
from phalanx_proto.job_status import JobStatus
from tests.system.groups import daemons, end, once_updating, write_group

TIMEOUT = 200
ENDLESS = ("simulate", "--samples", "1e12", "--chunk", "1e6", "--workers", "1")


def command_line(*arguments: str | int | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "phalanx", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def wait_for(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def counting(job: Path) -> JobStatus:
    """Its status once samples are being counted."""
    wait_for(lambda: (job / "status.json").exists() and job_files.read_status(job).done > 0, "no sample was counted")
    return job_files.read_status(job)


def family(pid: int | None) -> list[psutil.Process]:
    """A process and all below it."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    """Where a job may be made; it is ended with the test."""
    path = tmp_path / "job"
    yield path
    holder = job_lock.holder(path)
    if holder is not None and holder.runner:
        left = family(holder.pid)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()


# The fork only becomes a shell; what else this process has loaded, and in how many threads, is no matter.
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning", "ignore:.*fork:DeprecationWarning")
def test_a_job_outlives_its_terminal_and_a_cancel_is_proved(job: Path) -> None:
    shell, terminal = pty.fork()
    if shell == 0:  # pragma: no cover
        command = [sys.executable, "-m", "phalanx", *ENDLESS, "--background", "--output", str(job)]
        os.execv("/bin/sh", ["sh", "-c", f"{' '.join(command)} && exec sleep 1000"])
    try:
        said = b""
        while b"next " not in said:
            try:
                said += os.read(terminal, 4096)
            except OSError:  # the command has failed, and the shell with it
                pytest.fail(said.decode())
        pid = job_files.read_status(job).pid
        os.killpg(shell, signal.SIGHUP)
    finally:
        os.close(terminal)  # the terminal goes, and with it the session
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell, signal.SIGKILL)
        os.waitpid(shell, 0)
    assert f"(pid {pid})".encode() in said
    before = counting(job)
    assert (before.state, before.pid, before.total, before.unit) == ("RUNNING", pid, 10**12, "samples")
    wait_for(lambda: job_files.read_status(job).done > before.done, "it stands still")
    processes = family(pid)
    assert len(processes) >= 2
    assert os.getsid(before.pid or 0) != os.getsid(0)

    watch = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "status", "--watch", "--json", "--job", str(job)], stdout=subprocess.PIPE, text=True
    )
    assert watch.stdout is not None
    assert json.loads(watch.stdout.readline())["state"] == "RUNNING"
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=TIMEOUT)
    assert job_files.read_status(job).pid == pid

    busy = command_line("resume", "--job", job)
    assert (busy.returncode, busy.stdout) == (2, "")
    assert f"job job has a live coordinator (pid {pid})" in busy.stderr

    ran = command_line("cancel", "--job", job, "--json")
    assert ran.returncode == 0, ran.stderr
    after = json.loads(ran.stdout)
    assert (after["job"], after["state"], after["pid"], after["error"]) == ("job", "CANCELLED", None, "Cancelled")
    assert alive(processes) == []
    assert not (job / "result.json").exists()
    assert after["done"] >= before.done
    assert [event.kind for event in job_files.read_events(job)][-1] == "cancelled"
    with pytest.raises(Cancelled):
        phalanx.job(job).result()


def test_a_coordinator_that_is_killed_is_offline_with_the_last_snapshot_and_is_resumed(job: Path) -> None:
    handle = phalanx.submit_simulation(samples=3 * 10**8, seed=42, execution=phalanx.local(1, chunk=10**6), output=job)
    running = counting(job)
    processes = family(running.pid)
    os.kill(running.pid or 0, signal.SIGKILL)
    wait_for(lambda: handle.status().pid is None, "the lock is still held")
    last = handle.status()
    assert (last.state, last.pid, last.eta) == ("COORDINATOR_OFFLINE", None, None)
    assert last.done >= running.done > 0
    wait_for(lambda: not alive(processes), "its engines are still there")
    with pytest.raises(PhalanxError, match="its coordinator is gone"):
        handle.result()
    shown = command_line("status", "--job", job, "--json")
    assert json.loads(shown.stdout)["state"] == "COORDINATOR_OFFLINE"
    again = command_line("resume", "--job", job, "--workers", "2", "--background", "--json")
    assert again.returncode == 0, again.stderr
    found = handle.result(TIMEOUT)
    assert isinstance(found, phalanx.Simulation)
    assert (found.samples, len(found.members)) == (3 * 10**8, 2)
    assert handle.status().attempts == 2
    told = command_line("resume", "--job", job, "--json")
    assert (told.returncode, json.loads(told.stdout)["hits"]) == (0, found.hits)
    assert "job job is complete" in told.stderr


def test_a_fit_in_the_background_gives_the_digest_of_one_in_front(job: Path) -> None:
    parts = phalanx.datasets.iris().partition(seed=1)
    model = phalanx.classifier(phalanx.mlp(4, [8], 3, seed=42), standardize=True)
    config = phalanx.training(epochs=20, batch=32, rate=0.01, validation=parts.validation)
    here = phalanx.fit(model, parts.train, config, execution=phalanx.local(1))
    handle = phalanx.submit_fit(model, parts.train, config, execution=phalanx.local(1), output=job)
    seen = list(handle.watch())
    assert seen[-1].state == "COMPLETE"
    assert (seen[-1].update, seen[-1].updates, seen[-1].epoch) == (60, 60, 19)
    assert seen[-1].loss is not None and seen[-1].validation_loss is not None
    (member,) = seen[-1].members
    assert (member.name, member.state, member.rows) == ("local-1", "ended", 20 * len(parts.train))
    assert member.latency is not None
    fitted = phalanx.load(job)
    assert fitted.digest == here.digest
    assert fitted.history == here.history
    assert fitted.evaluate(parts.test) == here.evaluate(parts.test)
    assert (fitted.predict(parts.train.x) == here.predict(parts.train.x)).all()
    assert [found.id for found in phalanx.jobs(job.parent)] == ["job"]
    assert job in [found.directory for found in phalanx.jobs()]
    assert "coordinator: " in handle.logs()
    assert command_line("logs", "--job", job).stdout == handle.logs()
    assert command_line("cancel", "--job", job).returncode == 0
    assert handle.status().state == "COMPLETE"
    with pytest.raises(InvalidJob, match="is not a job directory"):
        phalanx.load(job.parent)
    phalanx.shutdown()


@pytest.mark.slow
def test_a_fit_that_was_killed_goes_on_elsewhere_to_the_same_digest(job: Path) -> None:
    parts = phalanx.datasets.synthetic(100, 8, 3, seed=1).partition(validation=0.2, test=0.2, seed=4)
    model = phalanx.classifier(phalanx.mlp(8, [16], 3, seed=5))
    config = phalanx.training(epochs=3000, batch=25, rate=0.01, block=4)
    unbroken = phalanx.fit(model, parts.train, config, execution=phalanx.local(1))
    phalanx.shutdown()
    handle = phalanx.submit_fit(model, parts.train, config, execution=phalanx.local(1), output=job)
    wait_for(lambda: any(event.kind == "checkpoint" for event in handle.events()), "no checkpoint was written")
    os.kill(handle.status().pid or 0, signal.SIGKILL)
    wait_for(lambda: handle.status().state == "COORDINATOR_OFFLINE", "it is not offline")
    ran = command_line("resume", "--job", job, "--workers", "2", "--json", "--quiet")
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert (result["digest"], result["level"], result["updates"]) == (unbroken.digest, "bitwise", unbroken.updates)
    kinds = [event.kind for event in handle.events() if event.kind != "checkpoint"]
    assert kinds == ["started", "started", "resumed", "complete"]
    assert phalanx.load(job).digest == unbroken.digest


def test_what_is_refused_is_refused_before_there_is_a_directory(job: Path) -> None:
    parts = phalanx.datasets.iris().partition(seed=1)
    model = phalanx.classifier(phalanx.mlp(5, [8], 3, seed=42))
    with pytest.raises(InvalidExperiment, match="features"):
        phalanx.submit_fit(model, parts.train, phalanx.training(epochs=1, batch=32, rate=0.1), output=job)
    assert not job.exists()
    ran = command_line(*ENDLESS, "--background")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "error: --background needs --output DIR: a new directory, by which the job is found again\n"
    phalanx.shutdown()


def test_a_job_of_this_process_is_cancelled_from_another(job: Path) -> None:
    begun: list[DirectoryJob] = []
    rival: list[PhalanxError] = []

    def listen(progress: Any) -> None:
        if progress.done and not begun:
            begun.append(phalanx.job(job))
            begun[0].status()
            try:
                from phalanx_coordinator.job_directory.directory import JobDirectory

                JobDirectory.open(job)
            except PhalanxError as error:
                rival.append(error)
            canceller.append(subprocess.Popen([sys.executable, "-m", "phalanx", "cancel", "--job", str(job)]))

    canceller: list[subprocess.Popen[bytes]] = []
    with pytest.raises(Cancelled, match="the job was cancelled"):
        phalanx.monte_carlo(samples=10**12, execution=phalanx.local(1, chunk=10**6), output=job, progress=listen)
    assert canceller[0].wait(TIMEOUT) == 0
    assert [type(error) for error in rival] == [JobBusy]
    assert phalanx.job(job).status().state == "CANCELLED"
    phalanx.shutdown()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_another_users_job_is_neither_shown_nor_touched(job: Path) -> None:
    (job.parent / "folder").mkdir()
    theirs = job.parent / "folder" / "theirs"
    theirs.mkdir()
    (theirs / "run-manifest.json").write_text('{"format": 1}')
    os.chown(theirs, 12345, 12345)
    for command in (("status",), ("cancel",), ("resume",), ("logs",)):
        ran = command_line(*command, "--job", theirs)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert "belongs to another user (uid 12345); only its owner can use it" in ran.stderr
    listed = command_line("jobs", theirs.parent)
    assert (listed.returncode, listed.stdout) == (0, "no jobs\n")
    assert "belongs to another user" in listed.stderr
    assert [path.name for path in theirs.iterdir()] == ["run-manifest.json"]


def test_the_members_of_a_group_are_told_apart_and_heard(tmp_path: Path, job: Path) -> None:
    group = write_group(tmp_path, [("local", 1.0), ("socket", 2.0)])
    parts = phalanx.datasets.iris().partition(seed=1)
    model = phalanx.classifier(phalanx.mlp(4, [8], 3, seed=42))
    told: list[Any] = []
    config = phalanx.training(epochs=4, batch=30, rate=0.01)
    phalanx.fit(model, parts.train, config, execution=group, output=job, progress=told.append)
    members = phalanx.job(job).status().members
    assert [member.name for member in members] == ["a", "b"]
    assert sum(member.rows or 0 for member in members) == 4 * len(parts.train)
    assert members[1].latency is not None and members[1].latency > 0
    assert [(event.kind, event.member) for event in phalanx.job(job).events()] == [
        ("started", None), ("admitted", "b"), ("checkpoint", None), ("complete", None),
    ]  # fmt: skip
    phalanx.shutdown()


def test_what_a_worker_said_is_in_the_log_of_its_job(tmp_path: Path, job: Path) -> None:
    group = write_group(tmp_path, [("socket", 1.0)], chunk=10**6)
    end_it = once_updating(lambda: end(next(iter(daemons())), signal.SIGTERM))
    with pytest.raises(WorkerLost):
        phalanx.monte_carlo(samples=10**12, execution=group, output=job, progress=end_it)
    lines = phalanx.job(job).logs().splitlines()
    assert any(line.startswith("a: ") and "SIGTERM" in line for line in lines), lines
    assert "/" not in (job / "status.json").read_text()
    phalanx.shutdown()
