"""A worker's daemon seen from the coordinator: started, kept alive by a lease, listened to, ended with proof.

The process's standard streams are the whole of it: greeting and lease go in, the ready line and beats come out, and the log
comes on standard error. A transport is only the command that starts it; where one does not carry, the next is tried.
"""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members.timing import Deadlines, silence_allowed
from phalanx_coordinator.ssh import config as ssh_config
from phalanx_coordinator.ssh import private_directory, probe
from phalanx_coordinator.ssh.advice import too_much_noise
from phalanx_coordinator.ssh.attempt import NOTICED, Attempt, Failure
from phalanx_coordinator.ssh.config import Destination
from phalanx_coordinator.ssh.failures import diagnose
from phalanx_coordinator.ssh.ready_line import TooMuchNoise, ready_line
from phalanx_coordinator.ssh.transport import Launch, Route, plan_launch, routes
from phalanx_proto.errors import PhalanxError, Unavailable, WorkerLost

LAST_LINES = 20
"""Lines of a worker's log that are kept for its error message."""
LINE_LIMIT = 2000
GRACE = 3.0
"""Seconds a worker has to end after its input closed."""
BUSY_PAUSES = (0.5, 1.5, 3.0)
"""Seconds, more or less, before another connection to a machine that closed one before the login."""
SECOND_LOOK = 0.5
"""Seconds for what a worker said while this process itself stood still."""

LogSink = Callable[[str, str], None]
"""Takes (worker, line)."""


class WorkerProcess:
    """One daemon. ``lost`` completes with the reason, once, when it is gone or silent."""

    def __init__(self, record: WorkerRecord, token: str, deadlines: Deadlines, log: LogSink) -> None:
        self.record = record
        self.name = record.name
        self.socket = ""
        self.route: Route | None = None
        """How it is reached, once it is ready."""
        self.lost: asyncio.Future[WorkerLost] = asyncio.get_running_loop().create_future()
        self._token, self._deadlines, self._log = token, deadlines, log
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._noise: deque[str] = deque(maxlen=LAST_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._directory: Path | None = None
        self._held: int | None = None
        self._destination: Destination | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ready_at: float | None = None
        self._owed = 0

    @property
    def pid(self) -> int | None:
        """Process id while it is there."""
        return None if self._process is None else self._process.pid

    async def start(self, oversubscribe: bool) -> None:
        """Start the daemon and wait until it answers; raises Unavailable or WorkerLost, naming it."""
        if self.record.transport == "ssh":
            self._destination = await ssh_config.destination(self.record)
        self._directory = private_directory.make(self.name)
        if self.record.transport == "ssh":  # a daemon here holds its directory, and clears it, itself
            self._held = private_directory.hold(self._directory)
            private_directory.sweep(self._directory.parent)
        ways = routes(self.record, self._destination)
        for route in ways:
            launch = plan_launch(self.record, route, self._directory, private_directory.fresh_name(), oversubscribe)
            await self._start_patiently(launch)
            if route == "socket" or await probe.carries(launch.socket, self._deadlines.rpc):
                self.route, self.socket = route, str(launch.socket)
                self._tasks.append(asyncio.create_task(self._listen()))
                return
            if route == ways[-1]:
                what = "cannot be reached: the way to it carries neither sockets nor a relay"
                raise self._error(Failure(kind="forward_refused", what=what))
            self._log(self.name, "its machine forwards no sockets; it is started again behind a relay")
            await self._end()
            self._lines.clear()

    async def _start_patiently(self, launch: Launch) -> None:
        """Start, and again where sshd was too busy to talk: it drops some of many connections that come at once."""
        for pause in (*BUSY_PAUSES, None):
            try:
                return await self._start(launch)
            except Unavailable as error:
                if pause is None or error.details.get("failure") != "closed_early":
                    raise
                self._log(self.name, "its machine closed the connection before the login; trying again")
                await self._end()
                self._lines.clear()
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # so that many do not come at once again

    async def _start(self, launch: Launch) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *launch.command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"worker {self.name}: {launch.command[0]} cannot be started: {error.strerror}") from None
        self._tasks = [asyncio.create_task(self._keep_log()), asyncio.create_task(self._renew())]
        ready = await self._ready_line()
        if not ready["ready"]:
            told = printable(str(ready.get("error", "it did not say why it is not ready")))
            await self._how_it_ended()
            raise self._error(Failure(kind="not_ready", what=f"cannot be ready: {told}"))
        self._ready_at = time.monotonic()

    async def _ready_line(self) -> dict[str, Any]:
        """The ready line, among whatever else a login shell prints."""
        assert self._process is not None and self._process.stdout is not None
        try:
            async with asyncio.timeout(self._deadlines.start):
                ready = await ready_line(self._process.stdout, lambda line: self._noise.append(self._plain(line)))
        except TimeoutError:
            raise self._ended(None, late=self._deadlines.start) from None
        except TooMuchNoise:
            raise self._error(too_much_noise(self.record)) from None
        if ready is None:
            raise self._ended(await self._how_it_ended())
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
            text = self._plain(line)
            self._lines.append(text)
            self._log(self.name, text)

    @contextlib.contextmanager
    def expecting(self, nbytes: int) -> Iterator[None]:
        """While so many bytes are on their way from a far worker, its beats may be late."""
        self._owed = 0 if self.record.here else nbytes
        try:
            yield
        finally:
            self._owed = 0

    async def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        silence = self._deadlines.heartbeat
        patience, heard = silence, time.monotonic()
        while True:
            try:
                async with asyncio.timeout(patience):
                    line = await _line(self._process.stdout)
            except TimeoutError:
                allowed = silence_allowed(silence, self._owed)
                if time.monotonic() - heard < allowed:
                    continue
                if patience == silence:  # it may be us who stood still: then what it said meanwhile is here
                    patience = min(SECOND_LOOK, silence / 2)
                    continue
                what = f"gave no sign of life for {allowed:.0f} s; it is stopped, or out of reach"
                self._lose(self._error(Failure(kind="silent", what=what, lost=True)))
                return
            if not line:
                self._lose(self._ended(await self._how_it_ended()))
                return
            patience, heard = silence, time.monotonic()

    def _lose(self, error: PhalanxError) -> None:
        if not self.lost.done():
            assert isinstance(error, WorkerLost)
            self.lost.set_result(error)

    def _ended(self, status: int | None, late: float | None = None) -> PhalanxError:
        """What explains the end of the process, or that it is late."""
        return self._error(diagnose(Attempt(
            record=self.record, status=status, lines=self._lines, ready=self._ready_at is not None, late=late,
            said=self._noise, destination=self._destination, platform=sys.platform,
        )))  # fmt: skip

    def _error(self, failure: Failure) -> PhalanxError:
        """The failure, with when it was noticed and the last words, for the owner of the run alone."""
        clock = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        since = "" if self._ready_at is None else f", {time.monotonic() - self._ready_at:.1f} s after it was ready"
        words = [*(f"(standard output) {line}" for line in self._noise), *self._lines]
        last = "".join(f"\n    {line}" for line in words)
        parts = [failure.step, f"{NOTICED} {clock}{since}", f"the last words of {self.name}:{last}" if last else ""]
        return failure.error(self.name, private="\n".join(part for part in parts if part))

    async def _how_it_ended(self) -> int | None:
        assert self._process is not None
        status: int | None = None
        with contextlib.suppress(TimeoutError):
            status = await asyncio.wait_for(self._process.wait(), GRACE)
        await asyncio.wait(self._tasks[:1], timeout=1.0)  # its last words
        return status

    def _plain(self, line: bytes) -> str:
        """A line of a peer's, fit for a terminal and a log; what repeats its input does not tell the token."""
        return printable(line.decode(errors="replace").replace(self._token, "(token)"))

    async def close(self) -> None:
        """End the daemon: first by closing its input, then by force. Nothing of it is left."""
        await self._end()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._held is not None:
            os.close(self._held)
            self._held = None
        if not self.lost.done():
            self.lost.cancel()

    async def _end(self) -> None:
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks[1:], return_exceptions=True)
        if self._process is None:
            return
        assert self._process.stdin is not None and self._process.stdout is not None
        self._tasks[1:] = [asyncio.create_task(_discard(self._process.stdout))]  # its end is not seen before that of its output
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), GRACE)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads a session of its own
            await self._process.wait()
        await asyncio.wait(self._tasks, timeout=GRACE)
        self._process._transport.close()  # type: ignore[attr-defined]
        self._process = self._ready_at = None
        self._noise.clear()


def printable(text: str) -> str:
    """A peer's words, fit for a terminal and a log."""
    return "".join(c if c.isprintable() else " " for c in text).rstrip()[:LINE_LIMIT]


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or what there is of one that is too long."""
    try:
        return await stream.readline()
    except ValueError:  # longer than the stream's limit: the rest of it was dropped
        return b"...\n"
