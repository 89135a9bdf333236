"""One engine process, seen from its owner: start by exec, operations with deadlines, an end that leaves nothing.

Used on an asyncio loop. An engine ends with its owner: it exits when the socket between them closes.
"""

import asyncio
import contextlib
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from phalanx_proto.endings import describe_exit
from phalanx_proto.errors import EngineFailed, OutOfTime, from_wire
from phalanx_worker import channel
from phalanx_worker.channel import Message
from phalanx_worker.environment import engine_environment

LAST_LINES = 20
"""Lines of an engine's output that are kept for the error message."""
SPIN = 400e-6
"""Seconds of looking for an answer that comes soon before waiting for it: a wake-up of this process costs as much as
folding and committing a usual update, and meanwhile it has nothing else to do."""
GRACE = 5.0
"""Seconds an engine has to end after its socket closed."""


@dataclass(frozen=True, kw_only=True)
class SlotSpec:
    """What one engine runs on."""

    backend: str = "cpu"
    ordinal: int = 0


class EngineProcess:
    """An engine in a process of its own."""

    def __init__(self, name: str, slot: SlotSpec) -> None:
        self.name = name
        self.slot = slot
        self.ready: dict[str, Any] = {}
        """The ready report: pid, device, jax version."""
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self._decoder = channel.Decoder()
        self._socket: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it is there."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is there, asked of the system and not of the loop."""
        if self.pid is None:
            return False
        try:
            return psutil.Process(self.pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except psutil.NoSuchProcess:
            return False

    async def start(self, deadline: float) -> None:
        """Start the process and wait ``deadline`` seconds at most for its self-tests to pass."""
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            self._socket = ours
            arguments = [str(theirs.fileno()), self.slot.backend, str(self.slot.ordinal)]
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "phalanx_worker.engine_process", *arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                pass_fds=(theirs.fileno(),), env=engine_environment(self.slot.backend), start_new_session=True,
            )  # fmt: skip
        self._reader = asyncio.create_task(self._keep_lines())
        self.ready = (await self.receive(deadline, "its self-tests")).body

    async def _keep_lines(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        with contextlib.suppress(ValueError, asyncio.LimitOverrunError):
            async for line in self._process.stdout:
                self.lines.append(line.decode(errors="replace").rstrip()[:2000])

    async def send(self, body: Mapping[str, Any], payload: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        """Send one operation; the answer comes from ``receive``, in order."""
        if self._socket is None:
            raise EngineFailed(f"engine {self.name} is closed")
        frame = channel.encode(body, payload, len(descriptors))
        try:
            if descriptors:
                frame = frame[socket.send_fds(self._socket, [frame], list(descriptors)) :]
            await asyncio.get_running_loop().sock_sendall(self._socket, frame)
        except (BrokenPipeError, ConnectionResetError):
            raise await self._ended() from None

    async def receive(self, deadline: float | None, waiting_for: str, *, soon: bool = False) -> Message:
        """The next answer, within ``deadline`` seconds. Raises what the engine raised.

        ``soon`` says that it is a matter of microseconds: the loop does nothing else for the first few hundred.
        """
        if self._socket is None:
            raise EngineFailed(f"engine {self.name} is closed")
        try:
            async with asyncio.timeout(deadline):
                message = await self._next(self._socket, soon)
        except ConnectionResetError:
            raise await self._ended() from None
        except TimeoutError:
            raise OutOfTime(f"engine {self.name} did not finish {waiting_for} within {deadline} s") from None
        if "error" in message.body:
            raise from_wire(message.body["error"].encode())
        return message

    async def _next(self, sock: socket.socket, soon: bool) -> Message:
        loop = asyncio.get_running_loop()
        while (message := self._decoder.next()) is None:
            data = _look(sock) if soon else None
            if data is None:
                data = await loop.sock_recv(sock, 1 << 16)
            if not data:
                raise await self._ended()
            self._decoder.feed(data)
        return message

    async def call(
        self, body: Mapping[str, Any], payload: bytes = b"", descriptors: Sequence[int] = (), *, deadline: float | None
    ) -> Message:
        """One operation and its answer."""
        await self.send(body, payload, descriptors)
        return await self.receive(deadline, repr(body["op"]))

    async def _ended(self) -> EngineFailed:
        status: int | None = None
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                status = await asyncio.wait_for(self._process.wait(), GRACE)
            if self._reader is not None:
                await asyncio.wait({self._reader}, timeout=1.0)
        last = "".join(f"\n    {line}" for line in self.lines)
        private = f"the last words of engine {self.name}:{last}" if last else ""
        return EngineFailed(f"engine {self.name} {describe_exit(status)}", private=private)

    async def close(self) -> None:
        """End the process; after this it is gone."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            if self._reader is not None:
                await self._reader
            # the transport would otherwise close itself in a later turn of a loop that may be gone by then
            self._process._transport.close()  # type: ignore[attr-defined]
            self._process = None


def _look(sock: socket.socket) -> bytes | None:
    """What comes within ``SPIN`` seconds; None for nothing, no bytes for the end."""
    until = time.monotonic() + SPIN
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            return sock.recv(1 << 16)
    return None
