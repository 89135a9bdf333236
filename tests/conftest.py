"""What every test shares: JAX on one CPU thread, and the proof that a test leaves nothing behind."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from phalanx_worker.environment import engine_environment

# Before anything imports JAX.
NUMERIC = ("NPROC", "OMP_NUM_THREADS", "JAX_PLATFORMS", "JAX_ENABLE_X64", "XLA_FLAGS")
os.environ.update({name: value for name, value in engine_environment("cpu").items() if name in NUMERIC})

# Every process of this run inherits this mark, so that other runs on the machine are not blamed on it, and a
# temporary folder of its own. Tests that run side by side are runs of their own.
MARK = "PHALANX_TEST_RUN"
RUN = uuid.uuid4().hex
os.environ[MARK] = RUN
ROOT = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="test-run-", dir=ROOT)
os.environ["XDG_STATE_HOME"] = str(Path(tempfile.tempdir, "state"))

# A run in the background of a script starts with interrupts ignored, and its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Property tests try the same examples in every run, and none is judged by the clock.
settings.register_profile("phalanx", derandomize=True, deadline=None, database=None)
settings.load_profile("phalanx")

STARTED = time.time() - 1.0
HERE = Path(__file__).parent
GUARDED = ("coordinator", "faults", "hosts", "system", "worker")
WORKER = "phalanx_worker"
SHARED_MEMORY = Path("/dev/shm")
PATIENCE_SECONDS = 5.0

Trace = int | Path
"""A process by its number, or a file."""


def is_worker(command: list[str]) -> bool:
    """``python … -m phalanx_worker…`` and its like."""
    return any(flag == "-m" and module.split(".")[0] == WORKER for flag, module in pairwise(command))


def is_ours(process: psutil.Process) -> bool:
    """Started by this run; an orphaned worker that was given a bare environment counts, whoever started it.

    The coordinator of a job in the background is an orphan on purpose: without our mark it is somebody's work.
    """
    environment = process.environ()
    if MARK in environment:
        return environment[MARK] == RUN
    return process.ppid() == 1 and is_worker(process.cmdline())


def strays() -> Iterator[psutil.Process]:
    """Living processes of this run that are no longer below this one."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.create_time() >= STARTED and is_ours(process):
                yield process


def command_of(process: psutil.Process) -> str:
    """The command line; empty for a process that ended and was not waited for. Raises ``psutil.NoSuchProcess``."""
    try:
        return " ".join(process.cmdline())
    except psutil.ZombieProcess:
        return ""


def processes() -> dict[Trace, str]:
    """Descendants and strays by number. Python's own resource tracker lives as long as its process, on purpose."""
    found: dict[Trace, str] = {}
    for process in (*psutil.Process().children(recursive=True), *strays()):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = command_of(process)
            if "multiprocessing.resource_tracker" not in command:
                found[process.pid] = f"process {process.pid}: {command or 'ended, but nobody waited for it'}"
    return found


def is_mapped_elsewhere(path: Path) -> bool:
    """Whether a process of another run holds this shared memory."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if str(path) in Path(f"/proc/{process.pid}/maps").read_text() and not is_ours(process):
                return process.pid != os.getpid()
    return False


def files() -> dict[Trace, str]:
    """Shared memory and temporary entries with our name."""
    folders = [folder for folder in (SHARED_MEMORY, Path(tempfile.gettempdir())) if folder.is_dir()]
    return {path: f"file {path}" for folder in folders for path in folder.glob("phalanx*")}


def has_an_owner(trace: Trace, before: Mapping[Trace, str]) -> bool:
    """Whether another run holds this file, or a process that was there before the test started this process."""
    if isinstance(trace, Path):
        return is_mapped_elsewhere(trace)
    with contextlib.suppress(psutil.Error):
        return any(parent.pid in before for parent in psutil.Process(trace).parents())
    return False


def left_since(before: Mapping[Trace, str]) -> dict[Trace, str]:
    """What is there now and was not before."""
    now = {**processes(), **files()}
    fresh = {trace: what for trace, what in now.items() if trace not in before}
    return {trace: what for trace, what in fresh.items() if not has_an_owner(trace, before)}


def remove(left: Mapping[Trace, str]) -> None:
    """End and delete what a faulty test left, so that the next test is judged alone."""
    for trace in left:
        if isinstance(trace, Path):
            shutil.rmtree(trace) if trace.is_dir() else trace.unlink(missing_ok=True)
        else:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(trace)
                process.kill()
                process.wait(timeout=1.0)


def demand_nothing_left(before: Mapping[Trace, str]) -> None:
    """Give what is ending a moment, then fail with the list of what stayed."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := left_since(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    if left:
        remove(left)
        pytest.fail("\n  ".join(["Left behind:", *left.values()]), pytrace=False)


@pytest.fixture(autouse=True, scope="session")
def nothing_left_at_the_end() -> Iterator[None]:
    """Also what wider fixtures started has to be gone when all tests are done."""
    before = {**processes(), **files()}
    yield
    demand_nothing_left(before)


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """What a worker does to its own process does not outlive a test either: files of later tests would be unreadable."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No process, shared memory or temporary entry outlives a test of the parts that make them.

    What module and session fixtures started before the test may stay for the next one.
    """
    guarded = request.path.is_relative_to(HERE) and request.path.relative_to(HERE).parts[0] in GUARDED
    before = {**processes(), **files()} if guarded else {}
    yield
    if guarded:
        demand_nothing_left(before)


def pytest_unconfigure() -> None:
    """Remove this run's temporary folder."""
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
