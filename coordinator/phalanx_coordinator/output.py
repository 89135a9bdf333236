"""A job's directory: ``run-manifest.json``, ``status.json`` (replaced whole each time) and ``result.json``.

What is in it is public: aliases of workers, never their endpoints.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx_proto.errors import Cancelled, InvalidRequest, PhalanxError, Unavailable
from phalanx_proto.jobs import Event, Listener, Progress
from phalanx_proto.result import finite, to_text

STATUS_EVERY = 0.5
"""Seconds between two statuses while nothing but progress changes."""


def write_whole(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a JSON file at once: a reader sees the old one or the new one, whatever happens to us."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(to_text(document))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class OutputDirectory:
    """The directory of one job; with no path it only passes progress on."""

    def __init__(self, path: Path | None, listener: Listener) -> None:
        self._path, self._listener = path, listener
        self._began = self._written = time.monotonic()
        self._last = Progress(phase="starting")

    @classmethod
    def create(cls, path: Path | None, manifest: Mapping[str, Any], listener: Listener) -> "OutputDirectory":
        """Make the directory, which must be new, and write the manifest; raises InvalidRequest, Unavailable."""
        found = cls(path, listener)
        if path is not None:
            try:
                path.mkdir(parents=False)
            except FileExistsError:
                raise InvalidRequest(f"the output directory {path} is there already; name a new one") from None
            except OSError as error:
                raise InvalidRequest(f"the output directory {path} cannot be made: {error.strerror}") from None
            found._write("run-manifest.json", manifest)
            found._status("RUNNING")
        return found

    def progress(self, progress: Progress) -> None:
        """Pass progress on, and write a status now and then; raises Unavailable where that is impossible."""
        changed = progress.phase != self._last.phase
        self._last = progress
        self._listener(progress)
        if changed or time.monotonic() - self._written > STATUS_EVERY:
            self._status("RUNNING")

    def event(self, event: Event) -> None:
        """Take note of a change in the history of the job."""

    def _status(self, state: str, reason: str | None = None) -> None:
        if self._path is None:
            return
        last, seconds = self._last, time.monotonic() - self._began
        self._written = time.monotonic()
        status = {
            "state": state, "reason": reason, "phase": last.phase, "done": last.done, "total": last.total or None,
            "unit": last.unit, "epoch": last.epoch, "loss": finite(last.loss),
            "validation_loss": finite(last.validation_loss),
            "seconds": round(seconds, 3), "pid": os.getpid() if state == "RUNNING" else None,
        }  # fmt: skip
        self._write("status.json", status)

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        assert self._path is not None
        try:
            write_whole(self._path / name, document)
        except OSError as error:
            reason = f"{name} cannot be written in the output directory {self._path}: {error.strerror or error}"
            raise Unavailable(f"{reason}; the job ends without a result") from None

    def finish(self, result: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
        """The result is on disk before anybody is told of it; raises Unavailable where it cannot be written."""
        if self._path is None:
            return
        try:
            self._write("run-manifest.json", manifest)
            self._write("result.json", result)
            self._status("COMPLETE")
        except Unavailable as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Say how the job ended without a result, if it can be said there; ``error`` is what counts."""
        cancelled = isinstance(error, Cancelled) or not isinstance(error, Exception)
        named = "interrupted" if cancelled else f"{type(error).__name__}: {error}"
        reason = error.message if isinstance(error, PhalanxError) else named
        with contextlib.suppress(Unavailable):
            self._status("CANCELLED" if cancelled else "FAILED", reason)
