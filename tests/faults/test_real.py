"""Schedules of faults over real daemons, sockets and signals: the digest of the unbroken run, told with its reasons."""

import asyncio
import dataclasses
import functools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx import embedded
from phalanx.results import Fitted
from phalanx_coordinator.job_directory.directory import JobDirectory
from phalanx_coordinator.members.timing import Backoff, Deadlines
from phalanx_coordinator.runs import fit as fit_module
from phalanx_coordinator.session import Coordinator
from phalanx_proto.errors import WorkerLost
from phalanx_proto.execution import Cluster, Execution
from phalanx_proto.jobs import Event, Progress
from tests.faults.injectors import Injector
from tests.faults.schedules import Fault, Kind, Phase
from tests.system.groups import classifier, daemons, end, once_updating, write_group
from tests.system.test_faults import Fault as Moment
from tests.system.test_faults import fail_at

ROWS = phalanx.datasets.synthetic(400, 8, 3, seed=1).rows("train")
BATCH = 50
DEADLINES = Deadlines(rpc=2.0, heartbeat=2.5, rejoin=Backoff(first=0.1, attempts=3))
SLOW_SECONDS = 180.0


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A coordinator of its own with short deadlines, of which nothing is left."""
    phalanx.shutdown()
    monkeypatch.setattr(embedded, "Coordinator", functools.partial(Coordinator, DEADLINES))
    monkeypatch.setattr(fit_module, "TELL_EVERY", 0.0)
    yield
    phalanx.shutdown()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What happened to the group."""
    found: list[Event] = []
    monkeypatch.setattr(JobDirectory, "event", lambda self, event: found.append(event))
    return found


def group(folder: Path, transports: str = "lss", slots: int = 1) -> Cluster:
    """Members a, b, c, of which ``l`` are the coordinator's own and ``s`` daemons."""
    names = {"l": "local", "s": "socket"}
    return write_group(folder, [(names[letter], 1.0) for letter in transports], slots=slots)


def fit(
    execution: Execution, epochs: int, on_loss: str = "rebalance", progress: Callable[[Progress], None] | None = None
) -> Fitted:
    config = phalanx.training(epochs=epochs, batch=BATCH, rate=0.01, seed=3)
    return phalanx.fit(classifier(), ROWS, config, execution=execution, on_loss=on_loss, progress=progress)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=8)
def unbroken(epochs: int) -> str:
    """The digest where nothing happens."""
    return fit(phalanx.local(1), epochs, on_loss="abort").digest


def kinds(events: list[Event], member: str) -> list[str]:
    return [event.kind for event in events if event.member == member]


def test_a_killed_worker_is_replaced_and_the_result_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[Event]
) -> None:
    wanted = unbroken(60)
    Injector([Fault(member="b", update=10, phase="computing", kind="kill")]).install(monkeypatch)

    states: set[tuple[str, str]] = set()

    def patient(progress: Progress) -> None:  # long enough for the new process to be there before the end
        states.update((member.name, member.state) for member in progress.members)
        if "joined" not in kinds(events, "b") and progress.done > 12:
            time.sleep(0.1)

    fitted = fit(group(tmp_path), 60, progress=patient)
    assert (fitted.digest, fitted.level) == (wanted, "bitwise")
    assert kinds(events, "b") == ["admitted", "lost", "rebalanced", "rejoining", "joined"]
    lost = next(event for event in events if event.kind == "lost")
    assert lost.update == 10
    assert lost.reason.startswith("worker b was ended by SIGKILL")
    assert states >= {("a", "computing"), ("b", "computing"), ("b", "rejoining"), ("c", "computing")}
    b = next(member for member in fitted.members if member.name == "b")
    assert (b.losses, b.incarnation) == (1, 2)
    assert b.updates is not None and 10 < b.updates < 480
    assert any(note.startswith("b was lost 1 time, back 1 time; the last reason: worker b was ended") for note in fitted.notes)
    assert fit(group(tmp_path), 1).updates == 8  # the group is warm and whole


@pytest.mark.parametrize(
    ("kind", "phase", "reason"),
    [
        ("stop", "computing", "gave no sign of life"),
        ("cut", "replying", "worker b"),
        ("corrupt", "computing", "worker b"),
    ],
)
def test_other_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[Event], kind: Kind, phase: Phase, reason: str
) -> None:
    wanted = unbroken(20)
    Injector([Fault(member="b", update=10, phase=phase, kind=kind, seconds=30.0)]).install(monkeypatch)
    fitted = fit(group(tmp_path, "ls"), 20)
    assert fitted.digest == wanted
    assert kinds(events, "b")[:3] == ["admitted", "lost", "rebalanced"]
    assert reason in events[1].reason


def test_a_worker_that_hangs_as_it_starts_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[Event]
) -> None:
    hasty = dataclasses.replace(DEADLINES, stragglers=0.1, daemons=0.1, start=3600.0)
    monkeypatch.setattr(embedded, "Coordinator", functools.partial(Coordinator, hasty))
    spawn = asyncio.create_subprocess_exec

    async def stopped(*command: Any, **settings: Any) -> asyncio.subprocess.Process:
        process = await spawn(*command, **settings)
        if "phalanx_worker" in command:
            process.send_signal(signal.SIGSTOP)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", stopped)
    fitted = fit(group(tmp_path, "ls"), 1)
    assert (fitted.digest, kinds(events, "b")[:1]) == (unbroken(1), ["lost"])
    assert any(note.startswith("b was absent at the start; the last reason: worker b was not ready") for note in fitted.notes)


@pytest.mark.parametrize("phase", ["opening", pytest.param("handshake", marks=pytest.mark.slow)])
def test_a_worker_that_goes_before_the_first_update_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[Event], phase: str
) -> None:
    wanted = unbroken(20)
    fail_at(monkeypatch, Moment("b", 0, phase))
    fitted = fit(group(tmp_path, "ls"), 20)
    assert fitted.digest == wanted
    assert kinds(events, "b")[:1] == ["lost"]
    assert any(note.startswith("b was absent at the start; the last reason: worker b was ended by") for note in fitted.notes)
    assert [member.rows for member in fitted.members] == [20 * 400, 0]


def test_the_last_worker_of_a_group_without_own_slots_ends_the_run_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Injector([Fault(member="a", update=3, phase="computing", kind="kill")]).install(monkeypatch)
    with pytest.raises(WorkerLost, match=r"update 3: no member is left to compute it; the last one: worker a was ended by"):
        fit(group(tmp_path, "s"), 20)


def test_a_simulation_gives_the_chunks_of_a_lost_worker_to_the_others(tmp_path: Path, events: list[Event]) -> None:
    execution = phalanx.cluster(group(tmp_path, "lss").file, chunk=200_000)
    kill = once_updating(lambda: end(next(iter(daemons()))), after=1_000_000)
    found = phalanx.monte_carlo(samples=10**8, seed=7, execution=execution, on_loss="rebalance", progress=kill)
    assert found.hits == phalanx.monte_carlo(samples=10**8, seed=7).hits
    assert "lost" in kinds(events, "b") + kinds(events, "c")
    assert sum(member.samples or 0 for member in found.members) == 10**8


@pytest.mark.slow
def test_random_schedules_over_real_workers(tmp_path: Path, events: list[Event]) -> None:
    seed = int(os.environ.get("PHALANX_FAULT_SEED", time.time_ns() % 10**9))
    print(f"PHALANX_FAULT_SEED={seed}")
    chance, until, wanted = random.Random(seed), time.monotonic() + SLOW_SECONDS, unbroken(40)
    real: tuple[Kind, ...] = ("kill", "stop", "cut", "silence", "slow", "corrupt", "engine")
    while time.monotonic() < until:
        faults = [
            Fault(
                member=chance.choice("bc"), update=chance.randrange(300), kind=chance.choice(real),
                phase=chance.choice(("asked", "computing", "replying", "replied")), seconds=chance.choice((0.01, 1.0, 30.0)),
            )
            for _ in range(chance.randint(1, 4))
        ]  # fmt: skip
        events.clear()
        with pytest.MonkeyPatch.context() as patch:
            phalanx.shutdown()
            Injector(faults).install(patch)
            fitted = fit(group(tmp_path, "lss", slots=chance.choice((1, 2))), 40)
            phalanx.shutdown()
        assert fitted.digest == wanted, f"seed {seed}: {faults}"
