"""A fit goes on when the way to a machine breaks, to the same bits; and the machine is taken in again over a new way."""

import contextlib
import functools
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import phalanx
from phalanx import embedded
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.job_directory.directory import JobDirectory
from phalanx_coordinator.members.timing import Backoff, Deadlines
from phalanx_coordinator.runs import fit as fit_module
from phalanx_coordinator.session import Coordinator
from phalanx_proto.jobs import Event, Progress
from tests.hosts.lab import Lab
from tests.hosts.workers import write_group
from tests.system.groups import classifier

DEADLINES = Deadlines(rpc=1.5, heartbeat=2.0, start=60.0, rejoin=Backoff(first=0.1, attempts=8))
ROWS = phalanx.datasets.synthetic(400, 8, 3, seed=1).rows("train")
CONFIG = phalanx.training(epochs=150, batch=50, rate=0.01, seed=3)
pytestmark = pytest.mark.usefixtures("fresh")


def kill_ssh(silent: Path) -> None:
    """The tunnel ends."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # what one of them had started ended with it
            if process.name() == "ssh":
                process.kill()


def fall_silent(silent: Path) -> None:
    """Nothing passes any more, and nobody is told."""
    silent.touch()


@pytest.mark.slow
@pytest.mark.parametrize("breaks", [kill_ssh, fall_silent])
def test_the_way_to_a_machine_breaks_and_is_mended(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(embedded, "Coordinator", functools.partial(Coordinator, DEADLINES))
    monkeypatch.setattr(fit_module, "TELL_EVERY", 0.0)
    silent, events = tmp_path / "silent", list[Event]()

    def note(directory: JobDirectory, event: Event) -> None:
        events.append(event)
        if event.kind == "lost":
            silent.unlink(missing_ok=True)

    def watch(progress: Progress) -> None:
        if progress.phase == "updates" and progress.done == 10:
            breaks(silent)
        elif progress.done > 10 and not any(event.kind == "joined" for event in events):
            time.sleep(0.05)

    monkeypatch.setattr(JobDirectory, "event", note)
    records = [WorkerRecord(name="here", transport="local"), lab.record("alpha", *lab.delayed(1.0, silent_when=silent))]
    execution = write_group(tmp_path, records)
    fitted = phalanx.fit(classifier(), ROWS, CONFIG, execution=execution, on_loss="rebalance", progress=watch)
    kinds = [event.kind for event in events if event.member == "alpha"]
    assert (kinds[:3], kinds[-1]) == (["admitted", "lost", "rebalanced"], "joined")
    monkeypatch.undo()
    phalanx.shutdown()
    assert fitted.digest == phalanx.fit(classifier(), ROWS, CONFIG, execution=phalanx.local(1)).digest
    assert all("alpha" in note or "here" in note for note in fitted.notes if "lost" in note)
