"""One machine asked over ssh by enroll: a script for sh, or an operation of ``far_side``, whose source goes along.

Everything goes through ssh's standard streams; no other connection is made and nothing is copied beside them.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.enroll import failures as enroll_failures
from phalanx_coordinator.ssh import config as ssh_config
from phalanx_coordinator.ssh.attempt import Attempt
from phalanx_coordinator.ssh.command import ssh_command
from phalanx_coordinator.ssh.failures import diagnose
from phalanx_proto.errors import OutOfTime, PhalanxError, Unavailable, WorkerLost

LOOK, WORK = 60.0, 3600.0
"""Seconds for a look at a machine, and for an installation there."""
LAST_LINES, MOST_LINES = 20, 1000
"""Lines of standard error and standard output that are kept."""
PIECE = 1 << 20
_BOOTSTRAP = (
    "import sys; d = sys.stdin.buffer; n = int(d.readline()); "
    'exec(compile(d.read(n), "far_side", "exec"), {"__name__": "far_side"})'
)

Tell = Callable[[str], None]


class FarMachine:
    """The machine of a record, which need not be in a cluster file yet."""

    def __init__(self, record: WorkerRecord, tell: Tell) -> None:
        self.record = record
        self._tell = tell

    async def script(self, text: str) -> str:
        """What a script for sh prints there. Raises the failure of the connection."""
        call = _Call(ssh_command(self.record, ["sh", "-s"]), self._tell)
        await self._in_time(call.run([text.encode()], (), LOOK, close=True), "look for a Python")
        if call.status != 0:
            raise await self._unreached(call)
        return "\n".join(call.lines)

    async def ask(self, python: str, operation: str, request: Mapping[str, Any], wheels: Sequence[Path] = ()) -> dict[str, Any]:
        """The answer of one operation of ``far_side``, run by ``python`` there. Raises what keeps it from being one."""
        source = (files("phalanx_coordinator.enroll") / "far_side.py").read_bytes()
        listed = [{"name": wheel.name, "size": wheel.stat().st_size} for wheel in wheels]
        line = json.dumps({**request, "operation": operation, "files": listed})
        head = f"{len(source)}\n".encode() + source + line.encode() + b"\n"
        call = _Call(ssh_command(self.record, [python, "-I", "-c", _BOOTSTRAP]), self._tell)
        await self._in_time(call.run([head], wheels, WORK if wheels else LOOK, close=False), operation)
        if call.answer is None:
            raise await self._unreached(call)
        found = call.answer.get("answer")
        if not isinstance(found, dict):
            words = [str(call.answer.get(key, "")) for key in ("kind", "text", "output")]
            raise enroll_failures.refused(words[0], words[1], words[2])
        return found

    async def _in_time(self, work: Awaitable[None], what: str) -> None:
        name = self.record.name
        try:
            await work
        except TimeoutError:
            raise OutOfTime(f"worker {name}: its machine did not finish in time: {what}", worker=name) from None
        except OSError as error:
            raise Unavailable(f"worker {name}: ssh cannot be started: {error.strerror}", worker=name) from None

    async def _unreached(self, call: "_Call") -> PhalanxError:
        """Why there is no answer: ssh's own failure, or how the program over there ended."""
        attempt = Attempt(
            record=self.record, status=call.status, lines=list(call.errors), platform=sys.platform,
            destination=await ssh_config.destination(self.record),
        )  # fmt: skip
        failure = diagnose(attempt)
        if failure.kind in ("ended", "not_phalanx", "incomplete"):
            last = "\n".join(f"    {line}" for line in call.errors)
            text = f"worker {self.record.name}: what enroll runs on its machine ended early (exit status {call.status})"
            return WorkerLost(text, private=f"its last words:\n{last}", failure="ended")
        last = "".join(f"\n    {line}" for line in call.errors)
        private = [failure.step, f"the last words of {self.record.name}:{last}" if last else ""]
        return failure.error(self.record.name, private="\n".join(part for part in private if part))


class _Call:
    """One ssh process: what goes in, and what came out."""

    def __init__(self, command: Sequence[str], tell: Tell) -> None:
        self.lines: deque[str] = deque(maxlen=MOST_LINES)
        self.errors: deque[str] = deque(maxlen=LAST_LINES)
        self.answer: dict[str, Any] | None = None
        self.status: int | None = None
        self._command, self._tell = command, tell

    async def run(self, head: Sequence[bytes], wheels: Sequence[Path], seconds: float, *, close: bool) -> None:
        """Send ``head`` and the files, and read to the end; with ``close``, close the input then. Nothing is left."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(
                    self._send(process, head, wheels, close), self._read(process), self._read_errors(process)
                )  # fmt: skip
                self.status = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                self.status = await process.wait()
            process._transport.close()  # type: ignore[attr-defined]

    async def _send(
        self, process: asyncio.subprocess.Process, head: Sequence[bytes], wheels: Sequence[Path], close: bool
    ) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is seen on its output
            for piece in head:
                process.stdin.write(piece)
                await process.stdin.drain()
            for wheel in wheels:
                with wheel.open("rb") as file:
                    while piece := await asyncio.to_thread(file.read, PIECE):
                        process.stdin.write(piece)
                        await process.stdin.drain()
        if close:
            process.stdin.close()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Lines of output; a step is told, and the answer ends the call."""
        assert process.stdout is not None and process.stdin is not None
        async for line in _lines(process.stdout):
            self.lines.append(line)
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and "step" in found:
                    self._tell(str(found["step"]))
                elif isinstance(found, dict) and "answer" in found:
                    self.answer = found
        process.stdin.close()

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in _lines(process.stderr):
            self.errors.append(line)


async def _lines(stream: asyncio.StreamReader) -> Any:
    """Lines as text, each fit for a terminal; one that is too long is cut."""
    rest = b""
    while piece := await stream.read(1 << 16):
        *whole, rest = (rest + piece).split(b"\n")
        rest = rest[: 1 << 20]
        for line in whole:
            yield _plain(line)
    if rest:
        yield _plain(rest)


def _plain(line: bytes) -> str:
    return "".join(c if c.isprintable() else " " for c in line.decode(errors="replace")).rstrip()
