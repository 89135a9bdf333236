"""``coordinator.log`` of a job: what its coordinator and its workers say, with name and time, and never without bound."""

import contextlib
import datetime
import os
import shutil
from pathlib import Path

LIMIT = 8 << 20
"""Bytes of the log; then it becomes ``coordinator.log.1``, and the one before that goes."""


class JobLog:
    """Appends lines; a line that cannot be written is no reason to end a job."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def line(self, name: str, text: str) -> None:
        """One line of ``name``."""
        moment = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        with contextlib.suppress(OSError):
            self._make_room()
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, f"{name}: {moment} {text}\n".encode(errors="replace"))
            finally:
                os.close(descriptor)

    def _make_room(self) -> None:
        """Copied and emptied, not renamed: a runner's standard error goes to the same file."""
        if self._path.exists() and self._path.stat().st_size > LIMIT:
            shutil.copy(self._path, self._path.with_name(f"{self._path.name}.1"))
            os.truncate(self._path, 0)
