"""The speed of completed work: the one way in which a rate and an ETA are computed. Pure; it is given the time."""

from collections import deque

WINDOW = 20.0
"""Seconds of work that the pace is measured over."""
GRAIN = 0.1
"""Seconds; closer observations are kept as one."""


class Pace:
    """The speed of completed work, over the last ``window`` seconds. None until work was seen to be completed."""

    def __init__(self, window: float = WINDOW) -> None:
        self._window = window
        self._seen: deque[tuple[float, int]] = deque()

    def observe(self, done: int, now: float) -> None:
        """At ``now`` (seconds, any origin) ``done`` units were completed; fewer than before begin a new count."""
        if self._seen and done <= self._seen[-1][1]:
            if done < self._seen[-1][1]:
                self._seen = deque([(now, done)])
            return
        if len(self._seen) > 1 and now - self._seen[-2][0] < GRAIN:
            self._seen.pop()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > self._window:
            self._seen.popleft()

    @property
    def rate(self) -> float | None:
        """Units a second."""
        if len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began else None

    def remaining(self, total: int) -> float | None:
        """Seconds until ``total`` units are completed, at this pace."""
        rate = self.rate
        return None if rate is None else max(total - self._seen[-1][1], 0) / rate
