"""A worker's daemon seen from the coordinator: started, kept alive by a lease, listened to, ended with proof.

The process's standard streams are the whole of it: greeting and lease go in, the ready line and beats come out, and the log
comes on standard error. A transport is only the command that starts it.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx_coordinator.cluster_record import WorkerRecord
from phalanx_coordinator.timing import Deadlines
from phalanx_proto.endings import describe_exit
from phalanx_proto.errors import Unavailable, WorkerLost

LAST_LINES = 20
"""Lines of a worker's log that are kept for its error message."""
LINE_LIMIT = 2000
GRACE = 3.0
"""Seconds a worker has to end after its input closed."""
SECOND_LOOK = 0.5
"""Seconds for what a worker said while this process itself stood still."""

LogSink = Callable[[str, str], None]
"""Takes (worker, line)."""


def socket_command(record: WorkerRecord, directory: Path, oversubscribe: bool) -> list[str]:
    """The command of a daemon on this machine."""
    command = [sys.executable, "-m", "phalanx_worker", "--slots", str(record.slots), "--backend", record.backend]
    command += ["--ordinal", str(record.device), "--directory", str(directory)]
    return [*command, "--oversubscribe"] if oversubscribe else command


class WorkerProcess:
    """One daemon. ``lost`` completes with the reason, once, when it is gone or silent."""

    def __init__(self, record: WorkerRecord, token: str, deadlines: Deadlines, log: LogSink) -> None:
        self.record = record
        self.name = record.name
        self.socket = ""
        self.lost: asyncio.Future[WorkerLost] = asyncio.get_running_loop().create_future()
        self._token, self._deadlines, self._log = token, deadlines, log
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._directory: Path | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int | None:
        """Process id while it is there."""
        return None if self._process is None else self._process.pid

    async def start(self, oversubscribe: bool) -> None:
        """Start the daemon and wait for its ready line; raises Unavailable or WorkerLost, naming it."""
        self._directory = self._private_directory()
        command = socket_command(self.record, self._directory, oversubscribe)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"worker {self.name}: {command[0]} cannot be started: {error.strerror}") from None
        self._tasks = [asyncio.create_task(self._keep_log()), asyncio.create_task(self._renew())]
        ready = await self._ready_line()
        if not ready["ready"]:
            raise Unavailable(f"worker {self.name}: {ready.get('error', 'it did not say why it is not ready')}")
        self.socket = str(ready["socket"])
        self._tasks.append(asyncio.create_task(self._listen()))

    def _private_directory(self) -> Path:
        try:
            runtime = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
            return Path(tempfile.mkdtemp(prefix="phalanx-", dir=runtime))
        except OSError as error:
            raise Unavailable(
                f"worker {self.name}: no directory can be made for its socket: {error.strerror}; let XDG_RUNTIME_DIR, or "
                "TMPDIR where that is not set, name a directory that you can write in"
            ) from None

    async def _ready_line(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        try:
            async with asyncio.timeout(self._deadlines.start):
                line = await _line(self._process.stdout)
        except TimeoutError:
            late = f"was not ready within {self._deadlines.start:.0f} s"
            raise self._loss(late) from None
        if not line:
            raise self._loss(await self._how_it_ended())
        ready = _ready(line)
        if ready is None:
            text = line[:200].decode(errors="replace").strip()
            raise self._loss(f"said {text!r} instead of its ready line; is it a Phalanx worker?")
        return ready

    async def _renew(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        greeting = {"token": self._token, "lease": self._deadlines.lease}
        line = json.dumps(greeting).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                self._process.stdin.write(line)
                await self._process.stdin.drain()
                await asyncio.sleep(self._deadlines.lease / 4)
                line = b"\n"

    async def _keep_log(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        while line := await _line(self._process.stderr):
            text = line.decode(errors="replace").rstrip()[:LINE_LIMIT]
            self._lines.append(text)
            self._log(self.name, text)

    async def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        silence = self._deadlines.heartbeat
        patience = silence
        while True:
            try:
                async with asyncio.timeout(patience):
                    line = await _line(self._process.stdout)
            except TimeoutError:
                if patience == silence:  # it may be us who stood still: then what it said meanwhile is here
                    patience = min(SECOND_LOOK, silence / 2)
                    continue
                self._lose(f"gave no sign of life for {silence:.0f} s; it is stopped, or out of reach")
                return
            if not line:
                self._lose(await self._how_it_ended())
                return
            patience = silence

    def _lose(self, what: str) -> None:
        if not self.lost.done():
            self.lost.set_result(self._loss(what))

    def _loss(self, what: str) -> WorkerLost:
        """What is public of the loss; the worker's last words are for the owner of the run alone."""
        last = "".join(f"\n    {line}" for line in self._lines)
        private = f"the last words of {self.name}:{last}" if last else ""
        return WorkerLost(f"worker {self.name} {what}", private=private, worker=self.name)

    async def _how_it_ended(self) -> str:
        assert self._process is not None
        status: int | None = None
        with contextlib.suppress(TimeoutError):
            status = await asyncio.wait_for(self._process.wait(), GRACE)
        await asyncio.wait(self._tasks[:1], timeout=1.0)  # its last words
        return describe_exit(status)

    async def close(self) -> None:
        """End the daemon: first by closing its input, then by force. Nothing of it is left."""
        for task in self._tasks[1:]:
            task.cancel()
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), GRACE)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)  # it leads a session of its own
                await self._process.wait()
            await asyncio.wait(self._tasks, timeout=GRACE)
            self._process._transport.close()  # type: ignore[attr-defined]
            self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if not self.lost.done():
            self.lost.cancel()


def _ready(line: bytes) -> dict[str, Any] | None:
    """The ready line's values; None where it is no such line."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(found, dict) and "ready" in found and ("socket" in found or not found["ready"])
    return found if whole else None


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or what there is of one that is too long."""
    try:
        return await stream.readline()
    except ValueError:  # longer than the stream's limit: the rest of it was dropped
        return b"...\n"
