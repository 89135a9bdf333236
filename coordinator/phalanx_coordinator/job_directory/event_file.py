"""``events.jsonl`` of a job as its coordinator writes it: whole lines, each on the disk before anybody is told of it."""

import json
import os
from dataclasses import asdict
from pathlib import Path

from phalanx_proto import job_files
from phalanx_proto.jobs import Event


class EventFile:
    """The history of one job."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / job_files.EVENTS

    def mend(self) -> int:
        """Cut off what a coordinator that was killed, or a full disk, left of a line; the number of events.

        Raises ``OSError``.
        """
        if not self._path.exists():
            return 0
        with self._path.open("rb") as file:
            data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self._path, whole)
        return len(job_files.read_events(self._path.parent))

    def append(self, event: Event) -> None:
        """Add one; raises ``OSError``, and then nothing of it is there."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            before = os.fstat(descriptor).st_size
            try:
                file.write((json.dumps(asdict(event)) + "\n").encode())
                file.flush()
                os.fsync(descriptor)
            except OSError:
                os.truncate(descriptor, before)
                raise
