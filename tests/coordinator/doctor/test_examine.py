"""The doctor with real daemons: what could join, what could not and why, and what a run would say of the same group."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from phalanx_coordinator.cluster.reading import ClusterFile, read_cluster
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.doctor import examine as doctor
from phalanx_coordinator.doctor import strays as doctor_strays
from phalanx_coordinator.doctor.table import summary
from phalanx_coordinator.members.findings import Examination, StrayReport
from phalanx_coordinator.members.placement import place
from phalanx_coordinator.members.timing import Deadlines
from phalanx_proto.errors import Unavailable
from phalanx_proto.execution import Cluster
from phalanx_worker.inventory import inventory

GROUP = """version = 2
precision = "float64"
[[worker]]
name = "pool"
transport = "local"
[[worker]]
name = "daemon"
transport = "socket"
[[worker]]
name = "greedy"
transport = "socket"
slots = 256
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "group.toml"
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def examine(group: ClusterFile, *, clean: bool = False) -> tuple[Examination, list[str]]:
    told: list[str] = []
    found = asyncio.run(
        doctor.examine(
            group, inventory(False), clean=clean, deadlines=Deadlines(), log=lambda worker, line: None, tell=told.append
        )
    )
    return found, told


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Examination, list[str]]]:
    path = write(tmp_path_factory.mktemp("group"), GROUP)
    yield path, *examine(read_cluster(path))


def test_each_machine_is_told_for_itself(examined: tuple[Path, Examination, list[str]]) -> None:
    _, found, told = examined
    pool, daemon, greedy = found.findings
    assert [finding.can_join for finding in found.findings] == [True, True, False]
    assert not found.can_join
    assert pool.link is None and pool.handshake is not None and pool.record.transport == "local"
    assert daemon.link is not None
    assert 0 < daemon.link.round_trip_median <= daemon.link.round_trip_p95
    assert daemon.link.up > 1e6 and daemon.link.down > 1e6
    assert greedy.failure is not None and "256" in greedy.failure.message
    assert [row["field"] for row in greedy.refusals] == ["slots"] and "write slots = " in found.steps["greedy"]
    assert pool.handshake.numeric_class == (daemon.handshake and daemon.handshake.numeric_class)
    assert told[0] == "starting 3 workers side by side" and "measuring the way to daemon" in told
    text = summary(found)
    assert "0.1.0" in text and "this machine" in text


def test_a_run_refuses_the_same_group_for_the_same_reason(examined: tuple[Path, Examination, list[str]]) -> None:
    path, found, _ = examined
    with pytest.raises(Unavailable) as refused:
        place(Cluster(file=path), inventory(False))
    assert list(found.problems) == [refused.value.message]


def test_nothing_of_an_examination_is_left(examined: tuple[Path, Examination, list[str]]) -> None:
    left = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            left += [child.cmdline()] if "phalanx_worker" in child.cmdline() else []
    assert left == []


def test_strays_of_a_machine_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    async def look(record: WorkerRecord, clean: bool) -> StrayReport:
        asked.append((record.name, clean))
        return StrayReport(removed=(7,))

    monkeypatch.setattr(doctor, "look_for_strays", look)
    workers = tuple(WorkerRecord(name=name, transport="socket", backend="cuda", device=n) for n, name in enumerate("ab"))
    found, _ = examine(ClusterFile(precision="float32", oversubscribe=False, workers=workers), clean=True)
    assert len(asked) == 1 and asked[0][1]
    if not inventory(True).accelerator("cuda").devices:  # type: ignore[union-attr]
        assert all("cuda" in finding.refusals[0]["wanted"] for finding in found.findings)
        assert all(finding.handshake is not None and not finding.can_join for finding in found.findings)
    assert [finding.strays.removed for finding in found.findings] == [(7,), (7,)]


def test_an_interrupt_ends_all_that_was_started(tmp_path: Path) -> None:
    """The guard of every test shows that nothing is left."""
    path = write(tmp_path, GROUP)
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from phalanx.cli import main; main()"
    doctor_at_work = subprocess.Popen([sys.executable, "-c", code, "doctor", path], stderr=subprocess.PIPE, text=True)
    assert doctor_at_work.stderr is not None
    assert doctor_at_work.stderr.readline() == "starting 3 workers side by side\n"
    while len(psutil.Process(doctor_at_work.pid).children()) < 2:
        assert doctor_at_work.poll() is None
        time.sleep(0.01)
    doctor_at_work.send_signal(signal.SIGINT)
    said = doctor_at_work.stderr.read()
    assert doctor_at_work.wait(60) == 130, said
    doctor_at_work.stderr.close()


def test_a_machine_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    record = WorkerRecord(name="here", transport="local")
    monkeypatch.setattr(doctor_strays, "strays_command", lambda *ignored: ["/no/such/program"])
    assert "here could not be asked" in asyncio.run(doctor_strays.look_for_strays(record, False)).reason
    monkeypatch.setattr(doctor_strays, "strays_command", lambda *ignored: ["sleep", "600"])
    monkeypatch.setattr(doctor_strays, "DEADLINE", 0.2)
    assert "here could not be asked" in asyncio.run(doctor_strays.look_for_strays(record, False)).reason
