"""The far end of a relay, where the server forwards no sockets: ``python -m phalanx_worker.relay SOCKET MODULE ARGUMENTS…``.

It runs MODULE (the supervisor), whose standard streams are the control channel, and connects every other channel to the
worker's SOCKET. Its own standard input and output carry the frames.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence

from phalanx_proto.multiplex import CONTROL, LIMIT, READY, Multiplexer, standard_streams

GRACE = 3.0
"""Seconds for what runs here to end after its input closed."""


async def relay(socket: str, command: Sequence[str]) -> int:
    """Carry everything until the command ends; its exit status, as a shell tells it."""
    reader, writer = await standard_streams()
    writer.write(b"\n" + READY)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=LIMIT)
    assert process.stdin is not None and process.stdout is not None

    async def connect(channel: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(socket, limit=LIMIT)

    mux = Multiplexer(reader, writer, connect)
    control = asyncio.create_task(mux.attach(process.stdout, process.stdin, CONTROL))
    running = asyncio.create_task(mux.run())
    ended = asyncio.create_task(process.wait())
    await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        process.stdin.close()
        await asyncio.wait({ended}, timeout=GRACE)
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    status = await ended
    await asyncio.wait({control}, timeout=GRACE)  # its last words are on their way
    for task in (control, running):
        task.cancel()
    await asyncio.gather(control, running, return_exceptions=True)
    return status if status >= 0 else 128 - status


def main(arguments: Sequence[str] | None = None) -> int:
    """Relay until the supervised worker ends."""
    socket, *module = sys.argv[1:] if arguments is None else arguments
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return asyncio.run(relay(socket, [sys.executable, "-P", "-m", *module]))


if __name__ == "__main__":
    sys.exit(main())
