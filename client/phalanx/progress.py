"""How far a job is, on standard error: a bar on a terminal, else a plain line every few seconds. Results go elsewhere.

The texts are pure. The displays only keep what they are told and show it a few times a
second, for a job may report thousands of updates in one.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from phalanx_proto.jobs import Listener, Progress
from phalanx_proto.pace import Pace

if TYPE_CHECKING:
    from rich.table import Table

PLAIN_EVERY = 5.0
"""Seconds between two plain lines; a shorter job prints none."""
REFRESHES = 4
"""Of the bar, in a second."""
N_A = "N/A"


def amount(number: float) -> str:
    """A count in a few characters: 1,234 or 12.3M."""
    if number < 100_000:
        return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.1f}"
    scale, unit = next((scale, unit) for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if number >= scale)
    return f"{number / scale:.1f}{unit}"


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds."""
    if seconds is None:
        return N_A
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def pieces(progress: Progress, pace: Pace) -> list[str]:
    """The texts of one moment: done of total, and what is known of rate, ETA and losses."""
    if not progress.total:
        return []
    texts = [f"{amount(progress.done)}/{amount(progress.total)} {progress.unit}"]
    if pace.rate is not None:
        texts += [f"{amount(pace.rate)}/s", f"ETA {duration(pace.remaining(progress.total))}"]
    if progress.loss is not None:
        texts.append(f"loss {progress.loss:.4g}")
    if progress.validation_loss is not None:
        texts.append(f"validation {progress.validation_loss:.4g}")
    return texts


@contextmanager
def shown(quiet: bool, stream: TextIO) -> Iterator[Listener]:
    """A listener that shows progress on ``stream`` while the context lasts; with ``quiet`` it shows nothing."""
    if quiet:
        yield lambda progress: None
    elif stream.isatty():
        with _bar(stream) as listener:
            yield listener
    else:
        yield PlainLines(stream)


class PlainLines:
    """A listener that prints a line now and then, at most one every ``every`` seconds."""

    def __init__(self, stream: TextIO, every: float = PLAIN_EVERY) -> None:
        self._stream, self._every = stream, every
        self._pace, self._next = Pace(), time.monotonic() + every

    def __call__(self, progress: Progress) -> None:
        """Take one report."""
        self.tell(progress, time.monotonic())

    def tell(self, progress: Progress, now: float) -> None:
        """Take one report of ``now``."""
        if progress.counts:
            self._pace.observe(progress.done, now)
        if now >= self._next:
            self._next = now + self._every
            text = ", ".join(pieces(progress, self._pace)) or progress.phase
            print(f"phalanx: {text}", file=self._stream, flush=True)


class _Latest:
    """The last report, and the pace so far; written by the job's thread and read by the display's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress, self._pace = Progress(phase="starting"), Pace()

    def tell(self, progress: Progress) -> None:
        with self._lock:
            self._progress = progress
            if progress.counts:
                self._pace.observe(progress.done, time.monotonic())

    def render(self) -> "Table":
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        with self._lock:
            progress, texts = self._progress, pieces(self._progress, self._pace)
        total = float(progress.total) if progress.total else None
        grid = Table.grid(padding=(0, 2))
        grid.add_row(progress.phase, ProgressBar(total=total, completed=progress.done, width=30, pulse=total is None), *texts)
        return grid


@contextmanager
def _bar(stream: TextIO) -> Iterator[Listener]:
    from rich.console import Console
    from rich.live import Live

    latest = _Latest()
    console = Console(file=stream)
    with Live(
        get_renderable=latest.render, console=console, refresh_per_second=REFRESHES, transient=True, redirect_stdout=False
    ):
        yield latest.tell
