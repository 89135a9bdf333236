"""To stop a process so that none of its threads does anything more."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil


def freeze(pid: int, within: float = 30.0) -> None:
    """Send SIGSTOP, and return once every thread has stopped; raises ProcessLookupError for a process that is gone.

    The signal alone is a promise: one thread is told, and stops the others when it next gets a processor. Until then they
    go on, and may answer a request, or see their owner go and clear up.
    """
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + within
    while not _stopped(pid):
        if time.monotonic() > until:
            raise AssertionError(f"process {pid} did not stop within {within:.0f} s")
        time.sleep(0.001)


def _stopped(pid: int) -> bool:
    try:
        if sys.platform != "linux":
            return psutil.Process(pid).status() == psutil.STATUS_STOPPED
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        return all(state in "TtZX" for state in states)
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return not psutil.pid_exists(pid)
