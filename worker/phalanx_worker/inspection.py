"""Judging untrusted programs from the outside: an inspector process that may be lost, and what its loss means.

Jax-free. An inspector that refused a program has read hostile bytes and is not used again; its successor is started at
once, so that the next program finds it ready. Whatever a program does to its inspector, the caller gets ProgramRefused.
"""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

from phalanx_proto.artifacts import Artifact, Inspection, Limits, Signature
from phalanx_proto.endings import describe_exit
from phalanx_proto.errors import CorruptData, EngineFailed, OutOfTime, ProgramRefused
from phalanx_proto.handshake import NOT_RUN, PASSED
from phalanx_worker import channel
from phalanx_worker.environment import engine_environment

MEMORY = 4 << 30
"""Bytes of address space; JAX alone maps 1.5 GiB."""
LAST_BYTES = 2000
"""Of the process's output, kept for the message."""
GRACE = 5.0
"""Seconds that a process has to end after its socket closed."""


class Inspector:
    """Inspects programs in a process of its own, one at a time. Safe to share between threads."""

    def __init__(self, memory: int = MEMORY) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def start(self) -> None:
        """Start the process and return at once; it gets ready by itself."""
        with self._lock:
            self._current()

    @property
    def pid(self) -> int | None:
        """Process id while there is one."""
        process = self._process
        return None if process is None else process.pid

    def self_test(self, deadline: float) -> str:
        """``PASSED``, or what failed or crashed in the known-answer tests, within ``deadline`` seconds."""
        with self._lock:
            try:
                return self._current().verdict(time.monotonic() + deadline)
            except (EngineFailed, OutOfTime) as error:
                self._discard()
                if error.private:
                    print(error.private, file=sys.stderr, flush=True)
                unknown = isinstance(error, OutOfTime) or "signal" in error.details
                return f"{NOT_RUN if unknown else 'the self-tests'}: {error.message}"

    def inspect(
        self, artifacts: Sequence[Artifact], signatures: Sequence[Signature | None], deadline: float
    ) -> list[Inspection]:
        """Inspect programs, in order, all within ``deadline`` seconds.

        A signature of None accepts any, and so does an empty ``digest``. Raises ProgramRefused for the first program
        that is refused, kills the inspector or holds it past the deadline. Raises EngineFailed if this machine cannot
        inspect, OutOfTime if the inspector was not ready in time.
        """
        until = time.monotonic() + deadline
        with self._lock:
            pairs = zip(artifacts, signatures, strict=True)
            return [self._inspect_one(artifact, signature, until) for artifact, signature in pairs]

    def close(self) -> None:
        """End the process; after this it is gone."""
        with self._lock:
            self._discard()

    def _current(self) -> "_Process":
        if self._process is not None and self._process.gone:  # while it was idle: no program's fault
            self._discard()
        if self._process is None:
            self._process = _Process(self._memory)
        return self._process

    def _discard(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _inspect_one(self, artifact: Artifact, signature: Signature | None, until: float) -> Inspection:
        if len(artifact.data) > Limits.artifact_bytes:
            raise ProgramRefused(
                f"program {artifact.name!r}: {len(artifact.data)} bytes; at most {Limits.artifact_bytes} are accepted"
            )
        process = self._ready(until)
        try:
            answer = process.ask(artifact, signature, until)
            if "refused" in answer:
                raise ProgramRefused(str(answer["refused"]["message"]))
            return Inspection.from_document(answer["inspection"])
        except (EngineFailed, OutOfTime) as error:
            self._replace()
            raise ProgramRefused(f"program {artifact.name!r}: while it was read, {error.message}") from error
        except ProgramRefused:
            self._replace()
            raise

    def _ready(self, until: float) -> "_Process":
        process = self._current()
        try:
            verdict = process.verdict(until)
        except (EngineFailed, OutOfTime):
            self._discard()
            raise
        if verdict != PASSED:
            raise EngineFailed(f"this machine inspects and runs no programs: {verdict}")
        return process

    def _replace(self) -> None:
        self._discard()
        self._current()


class _Process:
    """One inspector process. Every wait has a deadline, an instant of ``time.monotonic``."""

    def __init__(self, memory: int) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._socket, theirs = socket.socketpair()
        self._decoder = channel.Decoder()
        self._verdict: str | None = None
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "phalanx_worker.inspector", str(theirs.fileno()), str(memory)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=engine_environment("cpu"),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def gone(self) -> bool:
        """Whether the process ended after it was ready."""
        return self._verdict is not None and self._process.poll() is not None

    def verdict(self, until: float) -> str:
        """What the self-tests said; raises EngineFailed if they crashed, OutOfTime."""
        if self._verdict is None:
            self._verdict = str(self._receive(until)["self_test"])
        return self._verdict

    def ask(self, artifact: Artifact, signature: Signature | None, until: float) -> dict[str, Any]:
        """The inspector's answer; raises EngineFailed if it ended, OutOfTime."""
        body = {
            "name": artifact.name,
            "digest": artifact.digest,
            "signature": None if signature is None else dataclasses.asdict(signature),
        }
        try:
            self._wait_until(until)
            channel.send(self._socket, body, artifact.data)
        except TimeoutError:
            raise self._late() from None
        except ConnectionError:
            raise self._ended() from None
        return self._receive(until)

    def _receive(self, until: float) -> dict[str, Any]:
        try:
            while (message := self._decoder.next()) is None:
                self._wait_until(until)
                data = self._socket.recv(1 << 16)
                if not data:
                    raise self._ended()
                self._decoder.feed(data)
        except TimeoutError:
            raise self._late() from None
        except ConnectionError:
            raise self._ended() from None
        except CorruptData as error:
            raise EngineFailed(f"the inspector spoke nonsense: {error.message}") from None
        return message.body

    def _wait_until(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    @staticmethod
    def _late() -> OutOfTime:
        return OutOfTime("the inspector did not answer before its deadline; it was ended")

    def _ended(self) -> EngineFailed:
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(GRACE)
        ended = {"signal": -status} if status is not None and status < 0 else {}
        return EngineFailed(f"the inspector {describe_exit(status)}", private=self._last_words(), **ended)

    def _last_words(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        text = os.pread(self._output.fileno(), LAST_BYTES, max(0, size - LAST_BYTES)).decode(errors="replace").strip()
        return "the last words of the inspector:\n    " + text.replace("\n", "\n    ") if text else ""

    def end(self) -> None:
        """Kill the process and all that it started, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()
        self._output.close()
