"""Where a user's own things lie: the one place that asks the environment for it."""

import os
import stat
import tempfile
from pathlib import Path

from phalanx_proto.errors import Unavailable

LONGEST_SOCKET = 103
"""Bytes of a Unix socket's path that every system takes."""


def state_directory() -> Path:
    """What outlives a restart of the machine; it may not be there yet."""
    given = os.environ.get("XDG_STATE_HOME")
    return (Path(given) if given else Path.home() / ".local" / "state") / "phalanx"


def runtime_directory() -> Path:
    """The owner-only folder for sockets, made if it is not there; raises ``Unavailable`` where it is not the user's alone."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    return private(Path(given) / "phalanx" if given else Path(tempfile.gettempdir()) / f"phalanx-{os.getuid()}")


def private(path: Path) -> Path:
    """A folder that is its user's alone, made with mode 0700 if it is not there; raises ``Unavailable``."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise Unavailable(f"the folder {path} cannot be made: {error.strerror}; name another one") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Unavailable(f"the folder {path} must be a folder of yours alone: chmod 700 it, or name another one")
    return path


def default_socket() -> Path:
    """Where the user's coordinator service listens, and its clients look for it."""
    return runtime_directory() / "coordinator.sock"


def socket_path(path: Path) -> Path:
    """The path, if a Unix socket can have it; raises ``Unavailable``."""
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        raise Unavailable(
            f"the socket's path {path} is {len(os.fsencode(path))} bytes long, and {LONGEST_SOCKET} are possible; "
            "name a shorter one"
        )
    return path
