"""Private directories that workers and coordinators of this user left on this machine when they were killed.

One is left over if it has the name, the owner and the mode of ours, lies where workers make them, holds nothing but perhaps a
worker's socket that nobody answers at, and if nobody holds its lock, which a killed process cannot keep.
"""

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

SOCKET = "worker.sock"
SETTLED = 60.0
"""Seconds after which one with a socket is past its beginning."""
EMPTY = 600.0
"""The same for one without: a slow machine may take minutes from making it to holding it."""
_FAR = re.compile(r"phalanx-[0-9a-f]{32}")
_NEAR = re.compile(r"phalanx-[a-z0-9_]{8}")


def places(more: Iterable[str] = ()) -> list[Path]:
    """Where workers of this user make their directories, and ``more``."""
    named = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp", *more)
    return list(dict.fromkeys(Path(place).resolve() for place in named if place))


def find(parents: Iterable[Path], now: float | None = None) -> list[Path]:
    """Left-over directories; ``now`` is Unix time."""
    moment = time.time() if now is None else now
    found = []
    for parent in parents:
        with contextlib.suppress(OSError):
            found += [path for path in sorted(parent.glob("phalanx-*")) if _left_over(path, moment)]
    return found


def remove(directories: Iterable[Path]) -> list[Path]:
    """Remove those that nobody holds now; returns them."""
    removed = []
    for directory in directories:
        with contextlib.suppress(OSError), _held(directory):
            (directory / SOCKET).unlink(missing_ok=True)
            directory.rmdir()
            removed.append(directory)
    return removed


def _left_over(directory: Path, now: float) -> bool:
    try:
        status = directory.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700
        if not ours:
            return False
        names = os.listdir(directory)
        if names == [SOCKET]:
            named = _FAR.fullmatch(directory.name) or _NEAR.fullmatch(directory.name)
            if not named or now - status.st_mtime < SETTLED or not _unanswered(directory / SOCKET):
                return False
        elif names or not _FAR.fullmatch(directory.name) or now - status.st_mtime < EMPTY:
            return False
        with _held(directory):
            return True
    except OSError:  # in use, or gone meanwhile
        return False


def _unanswered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)
        return caller.connect_ex(str(path)) == errno.ECONNREFUSED


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Hold the directory as its worker would; raises OSError where somebody does."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
