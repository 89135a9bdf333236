"""Awaiting several things at once: the first failure ends the others, and the loss of a worker ends what needs it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def side_by_side(work: Iterable[Awaitable[None]]) -> None:
    """Await all at once; the first failure ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for item in work:
                group.create_task(_awaited(item))
    except BaseExceptionGroup as failures:
        raise first_error(failures) from None


async def _awaited(item: Awaitable[None]) -> None:
    await item


async def on_thread(work: Callable[[], Result], undo: Callable[[Result], object]) -> Result:
    """Carry out ``work`` on a thread, which nothing cuts off: cancelled meanwhile, wait for it and ``undo`` what it gave."""
    started = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(started)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # what it raised, or the undoing did, is no news to who asked for the end
            await asyncio.to_thread(undo, await started)
        raise


async def guarded(work: Coroutine[Any, Any, Result], workers: Any) -> Result:
    """Await ``work``, but end it as soon as a worker is lost; raises that worker's error."""
    task = asyncio.ensure_future(work)
    lost = {worker.process.lost for worker in workers}
    try:
        await asyncio.wait({task, *lost}, return_when=asyncio.FIRST_COMPLETED)
        gone = [future.result() for future in lost if future.done() and not future.cancelled()]
        if gone and not task.done():
            raise gone[0]
        return task.result()
    except BaseExceptionGroup as failures:
        raise first_error(failures) from None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # what it raised meanwhile only follows from what is raised here


def first_error(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first failure inside nested groups."""
    first = failures.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
