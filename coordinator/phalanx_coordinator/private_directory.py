"""The private directories of sockets: a real one here, and a name for one on another machine."""

import os
import secrets
import tempfile
from pathlib import Path

from phalanx_proto.errors import Unavailable
from phalanx_proto.ssh_options import fits_a_socket

_LONGEST_BELOW = "/phalanx-xxxxxxxx/worker.sock"


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


def fresh_name() -> str:
    """The name of a directory that nobody can have made before."""
    return f"phalanx-{secrets.token_hex(16)}"
