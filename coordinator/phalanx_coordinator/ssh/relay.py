"""The near end of a relay: ``python -m phalanx_coordinator.ssh.relay SOCKET SSH…``.

It runs ssh with a relay at its far end, listens on SOCKET (0600), and carries the connections made there, and its own
standard input and output, through ssh's. It ends with ssh, and ssh ends when the standard input closes.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence

from phalanx_proto.multiplex import CONTROL, LIMIT, READY, Multiplexer, standard_streams

GRACE = 2.5
"""Seconds for ssh to end after its input closed; less than the coordinator waits for this process."""


class NearRelay:
    """One ssh process and the socket that leads into it."""

    def __init__(self, socket: str, process: Process) -> None:
        self._socket, self._process = socket, process
        self._early = bytearray()

    async def run(self) -> None:
        """Until ssh or the standard input ends."""
        source, sink = await standard_streams()
        assert self._process.stdout is not None and self._process.stdin is not None
        if not await self._meet(source, sink, self._process.stdout):
            return
        mux = Multiplexer(self._process.stdout, self._process.stdin)
        if self._early:
            await mux.send(CONTROL, bytes(self._early))
        control = asyncio.create_task(mux.attach(source, sink, CONTROL))
        server = await asyncio.start_unix_server(mux.attach, self._socket, limit=LIMIT)
        try:
            await mux.run()
        finally:
            server.close()
            control.cancel()
            await asyncio.gather(control, return_exceptions=True)

    async def _meet(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, far: asyncio.StreamReader) -> bool:
        """Whether the far end spoke, before anybody gave up. What came before is passed on, for the error message."""
        meeting = asyncio.create_task(self._skip_noise(sink, far))
        waiting = asyncio.create_task(self._read_early(source))
        await asyncio.wait({meeting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        met = meeting.done() and meeting.result()
        for task in (meeting, waiting):
            task.cancel()
        await asyncio.gather(meeting, waiting, return_exceptions=True)
        return met

    async def _read_early(self, source: asyncio.StreamReader) -> None:
        while data := await source.read(4096):
            self._early += data

    async def _skip_noise(self, sink: asyncio.StreamWriter, far: asyncio.StreamReader) -> bool:
        """All that comes before the far end's first word is passed on: who reads it bounds it."""
        while True:
            try:
                line = await far.readuntil(b"\n")
            except asyncio.LimitOverrunError as longer:
                line = await far.readexactly(longer.consumed)
            except asyncio.IncompleteReadError as ended:
                sink.write(ended.partial)
                return False
            if line.endswith(READY):
                return True
            sink.write(line)
            await sink.drain()


async def relay(socket: str, command: Sequence[str]) -> int:
    """Run ssh, and carry what goes through; ssh's exit status, as a shell tells it."""
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=LIMIT)
    near = asyncio.create_task(NearRelay(socket, process).run())
    ended = asyncio.create_task(process.wait())
    try:
        await asyncio.wait({near, ended}, return_when=asyncio.FIRST_COMPLETED)
        assert process.stdin is not None
        if not ended.done():
            process.stdin.close()
            await asyncio.wait({ended}, timeout=GRACE)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        status = await ended
        near.cancel()
        await asyncio.gather(near, return_exceptions=True)
        with contextlib.suppress(OSError):
            os.unlink(socket)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Relay until ssh ends; ends by the signal that ended ssh."""
    socket, *command = sys.argv[1:] if arguments is None else arguments
    os.umask(0o177)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = asyncio.run(relay(socket, command))
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
