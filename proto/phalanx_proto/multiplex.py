"""Several byte streams over one pair of pipes, for where nothing but standard input and output is let through.

A frame is [channel u32][length u32][bytes], little-endian; length 0 ends that direction of the channel. Channel 0 is the
control stream and is there from the start; a frame of a new channel opens it. Frames keep their order. A reader that falls
behind holds back the whole pair, so memory stays bounded: the streams inside have flow control of their own (HTTP/2).
"""

import asyncio
import contextlib
import struct
import sys
from collections.abc import Awaitable, Callable

from phalanx_proto.errors import CorruptData

READY = b"phalanx-relay 1\n"
"""The line after which there is nothing but frames; what comes before it was not written by us."""
HEADER = struct.Struct("<II")
CONTROL = 0
LIMIT = 1 << 19
"""Bytes that a stream's reader holds before it holds its peer back."""
MAX_FRAME = 1 << 18
"""Bytes that one frame carries at most."""
MAX_CHANNELS = 64

Opener = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects a channel that the peer opened; raises OSError."""


class Multiplexer:
    """One end. ``run`` carries frames until the pipe closes; ``attach`` adds a stream that was accepted here."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, opener: Opener | None = None) -> None:
        self._reader, self._writer, self._opener = reader, writer, opener
        self._sinks: dict[int, asyncio.StreamWriter] = {}
        self._pumps: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._next = 1

    async def attach(self, reader: asyncio.StreamReader, sink: asyncio.StreamWriter, channel: int | None = None) -> None:
        """Carry a stream until its side here ends; a new channel unless one is given. The sink gets what comes back."""
        if channel is None:
            channel, self._next = self._next, self._next + 1
        self._sinks[channel] = sink
        with contextlib.suppress(OSError):  # the stream here is gone: the peer is told below
            while data := await reader.read(MAX_FRAME):
                await self.send(channel, data)
        await self.send(channel, b"")
        if channel != CONTROL and self._sinks.pop(channel, None) is not None:
            sink.close()

    async def send(self, channel: int, data: bytes) -> None:
        """Write one frame, and wait while too much waits already."""
        async with self._turn:
            with contextlib.suppress(ConnectionError):  # ``run`` sees the end of the pipe
                self._writer.write(HEADER.pack(channel, len(data)))
                self._writer.write(data)
                await self._writer.drain()

    async def run(self) -> None:
        """Deliver what comes, until the pipe closes. Raises CorruptData for what is no frame."""
        try:
            while True:
                try:
                    header = await self._reader.readexactly(HEADER.size)
                    channel, length = HEADER.unpack(header)
                    if length > MAX_FRAME:
                        raise CorruptData(f"a frame of {length} bytes came; at most {MAX_FRAME} are sent")
                    data = await self._reader.readexactly(length) if length else b""
                except (asyncio.IncompleteReadError, ConnectionError):
                    return
                await self._deliver(channel, data)
        finally:
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)
            for sink in self._sinks.values():
                sink.close()

    async def _deliver(self, channel: int, data: bytes) -> None:
        sink = self._sinks.get(channel) or await self._open(channel, data)
        if sink is None:
            return
        with contextlib.suppress(OSError):  # it went; its pump tells the peer
            if data:
                sink.write(data)
                await sink.drain()
            else:
                del self._sinks[channel]
                sink.close()

    async def _open(self, channel: int, data: bytes) -> asyncio.StreamWriter | None:
        """Connect what the peer opened; bytes of a channel that ended here are dropped."""
        if self._opener is None or not data or channel < self._next:
            return None
        self._next = channel + 1
        if len(self._sinks) > MAX_CHANNELS:
            raise CorruptData(f"more than {MAX_CHANNELS} connections at once")
        try:
            reader, sink = await self._opener(channel)
        except OSError:
            await self.send(channel, b"")
            return None
        pump = asyncio.create_task(self.attach(reader, sink, channel))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return sink


async def standard_streams() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Standard input and output of the process."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout.buffer)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
