"""The lock of a job's directory: who works on it, and whether that process is still there.

The lock is the kernel's (``flock``) and ends with its holder, however that ends. What is written in the file only says
who it is: a number, and the moment that process began, so that a number given out again names nobody.
"""

import contextlib
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from phalanx_proto.errors import JobBusy

NAME = "lock"
PATIENCE = 1.0
"""Seconds to try for: a reader that looks whether the lock is free holds it for a moment."""
LOOKS, BETWEEN_LOOKS = 20, 0.005
"""At a lock that is held, before its file is believed to name nobody who is there; seconds."""
SIZE = 200
"""Bytes of the file, filled up with spaces."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that holds a lock."""

    pid: int
    began: str
    """When it began, in the kernel's words; with the pid it names one process for ever."""
    runner: bool = False
    """Whether the process does nothing but this job, so that it may be ended for the job's sake."""

    @property
    def alive(self) -> bool:
        """Whether this very process is there; one that has ended and was not waited for is not."""
        return process_began(self.pid) == self.began


def process_began(pid: int) -> str | None:
    """When a process of this machine began; None where it is not there, or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except FileNotFoundError:
        return None if os.path.isdir("/proc/self") else _began_elsewhere(pid)
    except (OSError, IndexError):
        return None


def _began_elsewhere(pid: int) -> str | None:
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return f"{process.create_time():.2f}"
    return None


class JobLock:
    """The lock, held. Closed on exec, so no worker inherits it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, directory: Path, *, runner: bool = False, patience: float = PATIENCE) -> "JobLock":
        """Take the lock of a directory; raises ``JobBusy``, naming the process that has it, and ``OSError``."""
        descriptor = os.open(directory / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _acquire(descriptor, directory, patience)
            _sign(descriptor, runner)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    @classmethod
    def inherit(cls, descriptor: int, directory: Path, *, runner: bool = True) -> "JobLock":
        """Take over a lock that another process holds and handed on as an open file; from here on nobody inherits it."""
        os.set_inheritable(descriptor, False)
        _acquire(descriptor, directory, 0.0)
        _sign(descriptor, runner)
        return cls(descriptor)

    @property
    def descriptor(self) -> int:
        """The open file, to hand on to another process."""
        assert self._descriptor is not None
        return self._descriptor

    def release(self) -> None:
        """Let go; a second time is no fault."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _sign(descriptor: int, runner: bool) -> None:
    """Write down who holds the lock."""
    text = json.dumps(asdict(Holder(pid=os.getpid(), began=process_began(os.getpid()) or "", runner=runner)))
    os.pwrite(descriptor, text.ljust(SIZE).encode(), 0)  # over the whole of what was there, so that no reader sees a part


def _acquire(descriptor: int, directory: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = _written(descriptor)
                who = f" (pid {holder.pid})" if holder else ""
                raise JobBusy(
                    f"job {directory.name} has a live coordinator{who}; see how it goes with phalanx status --job {directory}, "
                    f"or end it first with phalanx cancel --job {directory}",
                    pid=holder.pid if holder else None,
                ) from None
            time.sleep(0.02)


def holder(directory: Path) -> Holder | None:
    """The live process that holds a directory's lock; None where nobody does."""
    for _ in range(LOOKS):
        held, found = _look(directory)
        if not held or (found is not None and found.alive):
            return found if held else None
        time.sleep(BETWEEN_LOOKS)  # whoever has just taken it has not written yet who it is
    return None


def _look(directory: Path) -> tuple[bool, Holder | None]:
    """Whether the lock is held, and who its file names."""
    try:
        descriptor = os.open(directory / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False, None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False, None
    except BlockingIOError:
        return True, _written(descriptor)
    except OSError:
        return False, None
    finally:
        os.close(descriptor)


def _written(descriptor: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(descriptor, 1000, 0)))
    except (ValueError, TypeError, OSError):
        return None
