"""Bytes between a coordinator and a worker's socket, passed on as a link would: delayed, stopped, changed, cut."""

import asyncio
import contextlib
from pathlib import Path

PIECE = 1 << 16
LONG = 512
"""Bytes: shorter pieces carry no values of nodes, but frames whose change the transport would notice."""


class Proxy:
    """Listens on a path of its own beside the worker's socket, and serves any number of connections."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.path = f"{target}.proxy"
        self.delay = 0.0
        """Seconds that each piece takes more."""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._to_change = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cut()
        Path(self.path).unlink(missing_ok=True)

    def silence(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._flowing.clear()

    def cut(self) -> None:
        """Every connection breaks."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def corrupt(self) -> None:
        """One bit of the next long piece from the worker is changed."""
        self._to_change += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for work in (self._pass(reader, far_writer, False), self._pass(far_reader, writer, True)):
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: bool) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while data := await reader.read(PIECE):
                await self._flowing.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                if back and self._to_change and len(data) >= LONG:
                    self._to_change -= 1
                    data = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
