"""A slow line, as ssh's ProxyCommand: ``delay.py [--milliseconds 30] [--rate 125000] [--silent-when FILE] HOST PORT``.

Every byte arrives ``milliseconds`` after it was sent, in each direction, at ``rate`` bytes a second at most; once FILE exists,
nothing arrives any more, and nobody is told.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from pathlib import Path

CHUNK = 1 << 16


async def carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float, rate: float, silent: Path | None
) -> None:
    """Move bytes, late. What is under way is bounded, as on a real line."""
    line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

    async def receive() -> None:
        free = time.monotonic()
        while data := await reader.read(CHUNK if not rate else max(1, min(CHUNK, int(rate / 20)))):
            now = time.monotonic()
            if rate:
                free = max(free, now) + len(data) / rate
                await asyncio.sleep(free - now)
            await line.put((time.monotonic() + delay, data))
        await line.put((time.monotonic() + delay, b""))

    async def deliver() -> None:
        while True:
            due, data = await line.get()
            left = due - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)
            if silent is not None and silent.exists():
                await asyncio.Event().wait()
            if not data:
                break
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()

    with contextlib.suppress(OSError):
        await asyncio.gather(receive(), deliver())


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--milliseconds", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--silent-when", type=Path)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    given = parser.parse_args()
    far_reader, far_writer = await asyncio.open_connection(given.host, given.port, limit=CHUNK)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(CHUNK)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout.buffer)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    settings = (given.milliseconds / 1000, given.rate, given.silent_when)
    tasks = {
        asyncio.create_task(carry(reader, far_writer, *settings)),
        asyncio.create_task(carry(far_reader, writer, *settings)),
    }
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


if __name__ == "__main__":
    asyncio.run(main())
