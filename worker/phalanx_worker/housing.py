"""Where a worker's daemon lives: its private directory, its lease, its beat, and the one way out of the process."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from phalanx_proto.errors import InvalidRequest

BEAT = 1.0
"""Seconds between two beats on standard output."""
SOCKET = "worker.sock"
LONGEST_PATH = 107 if sys.platform == "linux" else 103
"""Bytes of a Unix socket's path."""
EXIT_OVERRUN, EXIT_LEASE, EXIT_SETUP = 70, 71, 72


class Housing:
    """The private directory of the socket, and the one way out of the process."""

    def __init__(self, directory: Path | None) -> None:
        os.umask(0o077)
        self._own = directory is None
        runtime = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        self.directory = directory or Path(tempfile.mkdtemp(prefix="phalanx-", dir=runtime))
        self.socket = self.directory / SOCKET
        self._ending = threading.Lock()
        try:
            self._check()
            self._take()
        except InvalidRequest:
            if self._own:
                self._remove()
            raise

    def _check(self) -> None:
        if not self.directory.is_dir():
            raise InvalidRequest("the socket's directory is not there; make it with mode 0700, or name none")
        status = self.directory.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise InvalidRequest("the socket's directory must be this user's own, with mode 0700")
        if len(os.fsencode(self.socket)) > LONGEST_PATH:
            raise InvalidRequest(f"the socket's path is longer than {LONGEST_PATH} bytes; set XDG_RUNTIME_DIR to a short one")

    def _take(self) -> None:
        """Hold the directory for as long as this process lives: a second server would silently take the path over."""
        self._held = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._held)
            raise InvalidRequest("another worker serves in this directory; give each one its own, or name none") from None

    def _remove(self) -> None:
        """Remove the directory: one that was given only if it is empty, since its owner may be gone."""
        if self._own:
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                self.directory.rmdir()

    def leave(self, status: int, reason: str = "") -> None:
        """End the process, whatever it is doing; nothing of it stays."""
        if not self._ending.acquire(blocking=False):
            return
        if reason:
            with contextlib.suppress(OSError):  # nobody may be left to read it
                print(f"phalanx worker: {reason}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            self.socket.unlink()
        self._remove()
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        os._exit(status)


def keep_lease(seconds: float, leave: Callable[[int, str], None], descriptor: int = 0) -> None:
    """Leave when the input closes, or when nothing came for ``seconds``."""
    while True:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        if not ready:
            return leave(EXIT_LEASE, f"the lease of {seconds:.0f} s ran out: the coordinator is gone or out of reach")
        if not os.read(descriptor, 4096):
            return leave(0, "")


def beat(leave: Callable[[int, str], None]) -> None:
    """Write a sign of life every second, from a thread of its own."""
    number = 0
    while True:
        time.sleep(BEAT)
        number += 1
        try:
            print(json.dumps({"beat": number}), flush=True)
        except OSError:
            return leave(0, "")
