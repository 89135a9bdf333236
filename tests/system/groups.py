"""What the whole-system tests build again and again: group files, data, models, and faults at a moment of choice."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

import phalanx
from phalanx.models import Model
from phalanx_proto.execution import Cluster
from phalanx_proto.jobs import Progress
from tests.freezing import freeze

Place = tuple[str, float]
"""Transport and weight of one member."""
NAMES = "abcdefgh"


def write_group(
    folder: Path, places: Sequence[Place], *, precision: str = "float64", slots: int = 1, chunk: int | None = None
) -> Cluster:
    """A group of members a, b, c, ... that may oversubscribe this machine, in a file of its own."""
    lines = ["version = 2", f'precision = "{precision}"', "oversubscribe = true"]
    for name, (transport, weight) in zip(NAMES, places, strict=False):
        lines += ["[[worker]]", f'name = "{name}"', f'transport = "{transport}"', f"weight = {weight}", f"slots = {slots}"]
    path = folder / f"group-{sum(1 for _ in folder.iterdir())}.toml"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return phalanx.cluster(path, chunk=chunk)


def classifier(inputs: int = 8, classes: int = 3, hidden: Sequence[int] = (16,), optimizer: str = "adam") -> Model:
    """A small model."""
    network = phalanx.mlp(inputs, list(hidden), classes, seed=5)
    return phalanx.classifier(network, optimizer=optimizer)  # type: ignore[arg-type]


def children() -> set[int]:
    """Every process below this one."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def daemons() -> dict[int, psutil.Process]:
    """The worker daemons below this process."""
    found = {}
    for process in psutil.Process().children():
        if "phalanx_worker" in process.cmdline():
            found[process.pid] = process
    return found


def engines() -> list[psutil.Process]:
    """The engine processes of the coordinator's own pool, oldest first."""
    below = psutil.Process().children()
    mine = [process for process in below if "phalanx_worker.engine_process" in process.cmdline()]
    return sorted(mine, key=lambda process: process.create_time())


def once_updating(act: Callable[[], None], after: int = 1) -> Callable[[Progress], None]:
    """A listener that acts once, when ``after`` updates (or samples) are done; it runs on the coordinator's thread."""
    acted = False

    def listen(progress: Progress) -> None:
        nonlocal acted
        if not acted and progress.phase in ("updates", "samples") and progress.done >= after:
            acted = True
            act()

    return listen


def end(pid: int | None, how: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that must be there; one that is stopped has stopped."""
    assert pid is not None
    freeze(pid) if how == signal.SIGSTOP else os.kill(pid, how)
