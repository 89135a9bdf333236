"""Running one contender once, in a fresh process with a deadline, and telling what came of it.

A contender is a module that prints one JSON line (``peers/line.py``). Whatever it leaves behind is ended and counted.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
LONGEST_WORDS = 160
"""Characters of a failed run's last line that are kept."""
_PATH = re.compile(r"(?<![\w.])(?:[a-z+]+:)?/[\w./+-]+")
_PR_SET_CHILD_SUBREAPER = 36
_QUIET = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Every contender's environment: one thread a process, so that two processes mean two cores."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One thing to measure."""

    name: str
    module: str
    """Below ``benchmarks.peers``."""
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Importable names; where one is missing the contender is reported as not installed."""
    environment: Mapping[str, str] = field(default_factory=dict)
    deadline: timedelta = timedelta(minutes=4)
    ours: bool = False
    exact: bool = True
    """Its check value must equal the others' (within the question's tolerance)."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one run gave. ``failure`` is empty where the figures are there."""

    case: str
    contender: str
    round: int
    seconds: float = float("nan")
    """Warm work a unit."""
    whole: float = float("nan")
    """The process from its start to its end."""
    check: float = float("nan")
    versions: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""


def run(contender: Contender, *, case: str, number: int, python: str) -> Sample:
    """Measure once. Never raises for what the contender does; ``failure`` says it."""
    missing = [name for name in contender.needs if not _installed(python, name)]
    if missing:
        return Sample(case=case, contender=contender.name, round=number, failure=f"not installed: {', '.join(missing)}")
    command = [python, "-m", f"benchmarks.peers.{contender.module}", *contender.arguments]
    with _own_folder() as folder, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        environment = os.environ | _QUIET | {"TMPDIR": folder} | dict(contender.environment)
        before = set(psutil.Process().children(recursive=True))
        began = time.perf_counter()
        code = _finish(_start(command, environment, out, err), contender.deadline)
        whole = time.perf_counter() - began
        left = _end_leftovers(before)
        lines, words = _read(out), _read(err)
    result = _result(lines)
    if code != 0 or result is None:
        failure = _why(code, contender.deadline, words)
        return Sample(case=case, contender=contender.name, round=number, whole=whole, failure=failure)
    return Sample(
        case=case,
        contender=contender.name,
        round=number,
        seconds=result["seconds"] / result["units"],
        whole=whole,
        check=result["check"],
        versions=result["versions"],
        extra=result["extra"] | ({"processes left": float(left)} if left else {}),
    )


def adopt_orphans() -> None:
    """Become the parent of what contenders orphan (Linux), so that it can be found and ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@cache
def _installed(python: str, name: str) -> bool:
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([python, "-c", probe], cwd=ROOT, check=False, timeout=60).returncode == 0


def _own_folder() -> tempfile.TemporaryDirectory[str]:
    """For temporary files, so that none outlives a run that was ended; its path is short, for the sockets in it."""
    short = Path("/tmp")
    return tempfile.TemporaryDirectory(prefix="b", dir=short if short.is_dir() else None, ignore_cleanup_errors=True)


def _start(command: list[str], environment: Mapping[str, str], out: IO[str], err: IO[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )


def _finish(process: subprocess.Popen[bytes], deadline: timedelta) -> int | None:
    """Exit code, or None past the deadline; the process group is ended either way, interrupts included."""
    try:
        return process.wait(deadline.total_seconds())
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _end_leftovers(before: set[psutil.Process]) -> int:
    """End every descendant that was not there ``before``; how many there were. What is about to end by itself gets 2 s."""
    fresh = [process for process in psutil.Process().children(recursive=True) if process not in before]
    _, left = psutil.wait_procs(fresh, timeout=2)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)
    return len(left)


def _read(file: IO[str]) -> list[str]:
    file.seek(0)
    return [line.strip() for line in file.read().splitlines() if line.strip()]


def _result(lines: list[str]) -> dict[str, Any] | None:
    found = [line for line in lines if line.startswith('{"seconds"')]
    return dict(json.loads(found[-1])) if found else None


def _why(code: int | None, deadline: timedelta, words: list[str]) -> str:
    if code is None:
        return f"not done after {deadline.total_seconds():.0f} s"
    return f"exit {code}: {_PATH.sub('…', words[-1])[:LONGEST_WORDS] if words else 'no output'}"
