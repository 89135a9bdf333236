"""The private directories of sockets: a real one here, and a name for one on another machine."""

import contextlib
import fcntl
import os
import secrets
import tempfile
import time
from pathlib import Path

from phalanx_coordinator.ssh.transport import SOCKET
from phalanx_proto.errors import Unavailable
from phalanx_proto.ssh_options import fits_a_socket

_LONGEST_BELOW = "/phalanx-xxxxxxxx/worker.sock"
_OURS = "phalanx-????????"
SETTLED = 60.0
"""Seconds after which a directory that nobody holds is nobody's."""


def make(worker: str) -> Path:
    """A new directory (0700) whose path leaves room for a socket's; raises Unavailable, naming the worker."""
    places = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")
    fitting = [place for place in places if place and fits_a_socket(place + _LONGEST_BELOW)]
    try:
        return Path(tempfile.mkdtemp(prefix="phalanx-", dir=fitting[0]))
    except OSError as error:
        raise Unavailable(
            f"worker {worker}: no directory can be made for its socket: {error.strerror}; let XDG_RUNTIME_DIR, or "
            "TMPDIR where that is not set, name a directory that you can write in"
        ) from None


def hold(directory: Path) -> int:
    """Show that the directory is in use for as long as the descriptor is open, which a killed process cannot keep."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def sweep(parent: Path, older_than: float = SETTLED) -> None:
    """Remove what coordinators that were killed have left beside: directories of this user that nobody holds any more."""
    for directory in parent.glob(_OURS):
        with contextlib.suppress(OSError):  # somebody else's, in use, or gone meanwhile
            status = directory.lstat()
            settled = time.time() - status.st_mtime >= older_than
            if status.st_uid != os.geteuid() or not settled or set(os.listdir(directory)) - {SOCKET}:
                continue
            descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (directory / SOCKET).unlink(missing_ok=True)
                directory.rmdir()
            finally:
                os.close(descriptor)


def fresh_name() -> str:
    """The name of a directory that nobody can have made before."""
    return f"phalanx-{secrets.token_hex(16)}"
