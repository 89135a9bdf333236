"""The engines of one machine as one thing: started side by side, opened on one fit, watched, ended together.

Slot 0 leads. In the coordinator's pool it is the canonical engine; a worker's daemon leads in its own process and has only
``Followers`` here. If any engine goes, the operation under way fails at once and names it.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from phalanx_proto.errors import EngineFailed
from phalanx_worker.arena import Arena
from phalanx_worker.channel import Message
from phalanx_worker.opening import FitOpening, data_arena
from phalanx_worker.process import EngineProcess, SlotSpec

__all__ = ["Arena", "EngineProcess", "FitOpening", "Followers", "Pool", "SlotSpec", "data_arena"]

Result = TypeVar("Result")

START_DEADLINE = 120.0
OPEN_DEADLINE = 300.0
SIMULATE_DEADLINE = 3600.0


async def start_all(engines: Sequence[EngineProcess], deadline: float = START_DEADLINE) -> None:
    """Start engines side by side; if one fails, end all and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            for engine in engines:
                group.create_task(engine.start(deadline))
    except ExceptionGroup as failures:
        await close_all(engines)
        raise failures.exceptions[0] from None


async def close_all(engines: Sequence[EngineProcess]) -> None:
    """End engines side by side."""
    await asyncio.gather(*(engine.close() for engine in engines))


class Followers:
    """Engines that serve a leader's mailboxes: slots 1 and up."""

    def __init__(self, engines: Sequence[EngineProcess]) -> None:
        self.engines = list(engines)
        self._serving: list[asyncio.Task[Message]] = []

    async def open(self, opening: FitOpening, work: Arena, data: Sequence[Arena]) -> None:
        """Bind the fit in every follower, and let them serve."""
        await asyncio.gather(
            *(
                engine.call(
                    opening.body("follower", slot, work, data), opening.payload(),
                    opening.descriptors(work, data), deadline=OPEN_DEADLINE,
                )
                for slot, engine in enumerate(self.engines, 1)
            )
        )  # fmt: skip
        self._serving = [asyncio.create_task(self._serve(engine)) for engine in self.engines]

    async def _serve(self, engine: EngineProcess) -> Message:
        return await engine.call({"op": "serve"}, deadline=None)

    async def guard(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await ``work``, but fail as soon as a follower does."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, *self._serving}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.gather(*(serving for serving in self._serving if serving.done()))
                raise EngineFailed("an engine stopped following while its leader was at work")
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def simulate(self, cuts: Sequence[int], seed: int) -> list[int]:
        """Hits of each follower's range [cuts[k], cuts[k + 1])."""
        ranges = zip(self.engines, cuts, cuts[1:], strict=False)
        answers = await asyncio.gather(
            *(
                engine.call({"op": "simulate", "start": lo, "stop": hi, "seed": seed}, deadline=SIMULATE_DEADLINE)
                for engine, lo, hi in ranges
                if lo < hi
            )
        )
        return [int(answer.body["hits"]) for answer in answers]

    def check(self) -> None:
        """Raises EngineFailed if a follower's process has ended; for a leader that waits without a loop."""
        for engine in self.engines:
            if not engine.alive:
                raise EngineFailed(f"engine {engine.name} ended while its leader waited for it")

    async def released(self, deadline: float) -> None:
        """The leader has let them go: wait for all to return from their mailboxes."""
        if self._serving:
            done, late = await asyncio.wait(self._serving, timeout=deadline)
            if late:
                raise EngineFailed(f"{len(late)} engine(s) did not leave the fit within {deadline:.0f} s")
            for task in done:
                task.result()
        self._serving = []

    async def close(self) -> None:
        """End all followers."""
        for serving in self._serving:  # nothing wakes a read of a socket that its own side closes
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self._serving = []
        await close_all(self.engines)


class Pool:
    """The coordinator's engines: the canonical one, and those that only compute."""

    def __init__(self, slots: Sequence[SlotSpec]) -> None:
        self.slots = tuple(slots)
        self.leader = EngineProcess("1", slots[0])
        self.followers = Followers([EngineProcess(str(n), slot) for n, slot in enumerate(slots[1:], 2)])
        self.started = False
        self._arenas: list[Arena] = []

    @property
    def engines(self) -> list[EngineProcess]:
        """All engines, in slot order."""
        return [self.leader, *self.followers.engines]

    async def start(self, deadline: float = START_DEADLINE) -> None:
        """Start every engine; raises what the first failing one says."""
        await start_all(self.engines, deadline)
        self.started = True

    async def call(
        self, body: dict[str, Any], payload: bytes = b"", arenas: Sequence[Arena] = (), *, deadline: float
    ) -> Message:
        """One operation of the leader; fails at once if any engine of the pool goes."""
        descriptors = [arena.descriptor for arena in arenas]
        return await self.followers.guard(self.leader.call(body, payload, descriptors, deadline=deadline))

    async def open(self, opening: FitOpening, data: Sequence[Arena]) -> Arena:
        """Bind a fit in every engine; returns the work arena, which the caller may read and fill."""
        work = opening.work_arena()
        self._arenas.append(work)
        leader = self.leader.call(
            opening.body("canonical", 0, work, data), opening.payload(), opening.descriptors(work, data),
            deadline=OPEN_DEADLINE,
        )  # fmt: skip
        await asyncio.gather(leader, self.followers.open(opening, work, data))
        return work

    async def close_fit(self) -> None:
        """Unbind the fit; the engines stay."""
        await self.leader.call({"op": "close"}, deadline=OPEN_DEADLINE)
        await self.followers.released(OPEN_DEADLINE)
        self._drop_arenas()

    def _drop_arenas(self) -> None:
        for arena in self._arenas:
            arena.close()
        self._arenas = []

    async def close(self) -> None:
        """End every engine; nothing is left."""
        self.started = False
        await asyncio.gather(self.leader.close(), self.followers.close())
        self._drop_arenas()
