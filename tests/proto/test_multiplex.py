"""Several streams over one pair of pipes."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterable

import pytest

from phalanx_proto.errors import CorruptData
from phalanx_proto.multiplex import CONTROL, HEADER, MAX_FRAME, Multiplexer

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def pair() -> tuple[Pair, Pair]:
    """Two ends of one line."""
    near, far = socket.socketpair()
    return await asyncio.open_connection(sock=near), await asyncio.open_connection(sock=far)


async def hang_up(writers: Iterable[asyncio.StreamWriter]) -> None:
    """Close, whatever still waits to be sent."""
    for writer in writers:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


class Ends:
    """A near end, a far end whose channels lead to ``serve``, and the line between."""

    def __init__(self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self._serve = serve
        self.tasks: list[asyncio.Future[None]] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Ends":
        ours, theirs = await self.pair()
        self.near, self.far = Multiplexer(*ours), Multiplexer(*theirs, self._connect)
        self.running = [asyncio.create_task(end.run()) for end in (self.near, self.far)]
        return self

    async def pair(self) -> tuple[Pair, Pair]:
        """Two ends of a line that is closed at the end."""
        found = await pair()
        self.writers += [writer for _, writer in found]
        return found

    async def _connect(self, channel: int) -> Pair:
        here, there = await self.pair()
        self.tasks.append(asyncio.ensure_future(self._serve(*there)))
        return here

    async def client(self) -> Pair:
        """A connection made at the near end."""
        here, there = await self.pair()
        self.tasks.append(asyncio.create_task(self.near.attach(*there)))
        return here

    async def __aexit__(self, *ignored: object) -> None:
        await hang_up(self.writers)
        await asyncio.wait_for(asyncio.gather(*self.running, *self.tasks, return_exceptions=True), 10)


def run(story: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await story

    asyncio.run(bounded())


def test_connections_do_not_mix() -> None:
    async def story() -> None:
        async with Ends(echo) as ends:
            clients = [await ends.client() for _ in range(5)]
            for n, (_, writer) in enumerate(clients):
                writer.write(bytes([n]) * 100_000)
            for n, (reader, _) in enumerate(clients):
                assert await reader.readexactly(100_000) == bytes([n]) * 100_000
            for _, writer in clients:
                writer.close()

    run(story())


def test_a_side_that_closes_is_seen_by_the_other() -> None:
    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello " + await reader.readexactly(3))
        writer.close()

    async def story() -> None:
        async with Ends(answer_once) as ends:
            reader, writer = await ends.client()
            writer.write(b"ada")
            assert await reader.read() == b"hello ada"
            writer.close()

    run(story())


def test_nobody_there_is_a_closed_connection() -> None:
    async def story() -> None:
        ours, theirs = await pair()

        async def refuse(channel: int) -> Pair:
            raise FileNotFoundError

        near, far = Multiplexer(*ours), Multiplexer(*theirs, refuse)
        running = [asyncio.create_task(end.run()) for end in (near, far)]
        here, there = await pair()
        attached = asyncio.create_task(near.attach(*there))
        here[1].write(b"x")
        assert await here[0].read() == b""
        await hang_up([writer for _, writer in (here, there, ours, theirs)])
        await asyncio.gather(attached, *running)

    run(story())


def test_a_reader_that_stands_still_bounds_what_waits() -> None:
    async def stand(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        async with Ends(stand) as ends:
            _, writer = await ends.client()
            sent = 0
            with pytest.raises(TimeoutError):
                while sent < 64 << 20:
                    writer.write(b"x" * 65536)
                    async with asyncio.timeout(0.3):
                        await writer.drain()
                    sent += 65536
            assert sent < 16 << 20
            for task in ends.tasks:
                task.cancel()

    run(story())


def test_what_is_no_frame_is_refused() -> None:
    async def story() -> None:
        ours, theirs = await pair()
        theirs[1].write(HEADER.pack(CONTROL, MAX_FRAME + 1))
        with pytest.raises(CorruptData, match="a frame of"):
            await Multiplexer(*ours).run()
        await hang_up([ours[1], theirs[1]])

    run(story())
