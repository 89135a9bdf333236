"""Work that ends when somebody asks for it from outside: the asking is a file, so it reaches any process that runs a job."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from phalanx_proto.errors import Cancelled

Result = TypeVar("Result")
LOOK_EVERY = 0.25
"""Seconds between two looks."""


async def unless_asked(work: Awaitable[Result], asked: Callable[[], bool], every: float = LOOK_EVERY) -> Result:
    """Await ``work``; where ``asked`` becomes true first it is cancelled, and when it has ended ``Cancelled`` is raised."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=every))[0]:
            if asked():
                task.cancel()
                await asyncio.wait({task})
                if task.cancelled():
                    raise Cancelled("the job was cancelled; everything it started has ended")
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
