"""An event loop whose clock jumps: waiting costs nothing, and a wait that nothing can end is an error at once."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class NothingPending(Exception):
    """Somebody waits for what cannot come: there is no timer, and no file is watched."""


class JumpingSelector(selectors.SelectSelector):
    """Moves the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise NothingPending
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Seconds since its beginning, of which only waiting takes any."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``, at once."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
