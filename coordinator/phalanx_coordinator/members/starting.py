"""Members that start side by side, where the work can begin without those that are much slower than the others."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx_coordinator.members.timing import Deadlines
from phalanx_proto.errors import OutOfTime, PhalanxError


@dataclass(kw_only=True)
class Patience:
    """How long members that are not ready are waited for. Pure: seconds since the start are arguments."""

    deadlines: Deadlines
    slowest: float | None = None
    """When the last one so far was ready; None where nobody is."""
    remote: bool = False
    """Whether a remote one is."""

    def ready(self, seconds: float, *, remote: bool) -> None:
        """One more is ready."""
        self.slowest = max(seconds, self.slowest or 0.0)
        self.remote |= remote

    @property
    def until(self) -> float | None:
        """When the others are given up; None while nobody is ready. Engines here say little of how long a daemon takes."""
        if self.slowest is None:
            return None
        return self.slowest + max(self.slowest, self.deadlines.stragglers if self.remote else self.deadlines.daemons)


async def start_side_by_side(
    starts: Mapping[str, Coroutine[Any, Any, object]], patience: Patience, engines: asyncio.Event
) -> dict[str, PhalanxError]:
    """Await the starts of remote members, while ``engines`` here get ready too; says who is absent and why.

    A start that is given up has ended. ``engines`` is never set where there are none.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    tasks = {loop.create_task(start): name for name, start in starts.items()}
    here = loop.create_task(engines.wait())
    absent: dict[str, PhalanxError] = {}
    left: set[asyncio.Task[Any]] = set(tasks)
    try:
        while left:
            until = patience.until
            wait = None if until is None else max(0.0, until - (loop.time() - began))
            done, _ = await asyncio.wait(
                {*left, *(() if here.done() else (here,))}, timeout=wait, return_when="FIRST_COMPLETED"
            )
            if not done:
                break
            for task in done:
                try:
                    task.result()
                except PhalanxError as error:
                    absent[tasks[task]] = error
                else:
                    patience.ready(loop.time() - began, remote=task is not here)
            left -= done
        for task in left:
            late = f"was not ready after {loop.time() - began:.0f} s, when the others had long been"
            absent[tasks[task]] = OutOfTime(f"worker {tasks[task]} {late}", worker=tasks[task], failure="late")
    finally:
        for task in (here, *tasks):
            task.cancel()
        await asyncio.gather(here, *tasks, return_exceptions=True)
    return absent
