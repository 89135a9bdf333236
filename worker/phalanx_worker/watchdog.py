"""Ends this process when a piece of engine work overruns its deadline: nothing inside a running program can be stopped."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TICK = 0.2
"""Seconds between looks."""


class Watchdog:
    """A thread that watches one piece of work at a time."""

    def __init__(self, deadline: float, end: Callable[[str], None]) -> None:
        self.deadline = deadline
        """Seconds that one piece of work may take."""
        self._end = end  # told why; ends the process
        self._until: tuple[float, str] | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    @contextmanager
    def watching(self, what: str) -> Iterator[None]:
        """The work inside must end within the deadline."""
        self._until = (time.monotonic() + self.deadline, what)
        try:
            yield
        finally:
            self._until = None

    def _watch(self) -> None:
        while not self._stopped.wait(TICK):
            until = self._until
            if until is not None and time.monotonic() > until[0]:
                self._end(
                    f"the engine overran its deadline of {self.deadline:.0f} s in {until[1]!r}; "
                    "the worker ends, since a running program cannot be stopped"
                )
                return
