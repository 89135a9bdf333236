"""The doctor and real sshds: how far each machine was come to, the next step, what was measured, and left-over workers."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import psutil
import pytest

from phalanx_coordinator.cluster.reading import ClusterFile
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.doctor import examine as doctor
from phalanx_coordinator.doctor.strays import look_for_strays
from phalanx_coordinator.doctor.table import document, stage, summary
from phalanx_coordinator.members.findings import Examination, StrayReport
from phalanx_coordinator.members.launch import WorkerProcess
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_worker.inventory import inventory
from tests.hosts.lab import Lab, free_port
from tests.hosts.workers import DEADLINES, with_worker
from tests.worker.daemons import TOKEN, until


def examine(*records: WorkerRecord) -> Examination:
    group = ClusterFile(precision="float64", oversubscribe=True, workers=records, path=Path("group.toml"))
    work = doctor.examine(
        group, inventory(False), clean=False, deadlines=DEADLINES, log=lambda worker, line: None, tell=lambda text: None
    )
    return asyncio.run(work)


def examine_with_a_relay(lab: Lab, *records: WorkerRecord) -> Examination:
    """The records, and one behind a server that forwards no sockets."""
    with lab.server("alpha", AllowStreamLocalForwarding="no") as there:
        return examine(*records, lab.record("alpha", *there, name="relayed"))


STAGES = ("reached", "host key", "authentication", "executable")


def test_each_machine_is_told_as_far_as_it_was_come_to(lab: Lab, tmp_path: Path) -> None:
    """One group, side by side: one that is well, and one for each thing that keeps a machine out."""
    nobody = tmp_path / "known_hosts"
    nobody.touch()
    no_key = ("-o", "IdentityFile=none", "-o", "PubkeyAuthentication=no")
    found = examine_with_a_relay(
        lab,
        lab.record("alpha", name="well"),
        lab.record("alpha", "-o", f"Port={free_port()}", name="closed"),
        lab.record("alpha", "-o", f"UserKnownHostsFile={nobody}", name="stranger"),
        lab.record("alpha", *no_key, name="keyless"),
        lab.record("alpha", name="bare", python="/no/such/python"),
    )
    shown = {finding.record.name: [stage(finding, name) for name in STAGES] for finding in found.findings}
    assert shown == {
        "well": ["ok", "ok", "ok", "ok"],
        "closed": ["connection refused", "-", "-", "-"],
        "stranger": ["ok", "unknown key", "-", "-"],
        "keyless": ["ok", "ok", "refused key", "-"],
        "bare": ["ok", "ok", "ok", "no executable"],
        "relayed": ["ok", "ok", "ok", "ok"],
    }
    well, relayed = found.findings[0], found.findings[-1]
    assert relayed.can_join and relayed.route == "relay" and relayed.link is not None
    public = " ".join(finding.failure.message for finding in found.findings if finding.failure is not None)
    assert not any(word in public for word in ("alpha", "/no/such", str(tmp_path)))
    assert well.can_join and not found.can_join and well.route == "forward"
    assert well.link is not None and 0 < well.link.round_trip_median <= well.link.round_trip_p95 and well.link.up > 1e5
    assert well.strays.reason == "" and well.handshake is not None
    assert "ssh-keyscan" in found.steps["stranger"] or "ssh " in found.steps["stranger"]
    assert "phalanx enroll" in found.steps["bare"]
    assert set(found.steps) == {"closed", "stranger", "keyless", "bare"}
    text = summary(found)
    assert "unknown key" in text and "next: " in text and json.dumps(document(found))


@pytest.mark.slow
def test_a_long_way_is_measured(lab: Lab) -> None:
    found = examine(lab.record("alpha", *lab.delayed(milliseconds=60, rate=2_000_000), name="far"))
    link = found.findings[0].link
    assert link is not None
    assert 0.06 <= link.round_trip_median < 0.12
    assert link.up < 4_000_000 and link.down < 4_000_000


ORPHAN = """
import json, os, subprocess, sys, time
directory = "/tmp/phalanx-" + os.urandom(16).hex()
os.mkdir(directory, 0o700)
daemon = subprocess.Popen(
    [sys.executable, "-m", "phalanx_worker", "--directory", directory],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, text=True)
daemon.stdin.write(json.dumps({"token": "%s", "lease": 600}) + "\\n")
daemon.stdin.flush()
daemon.stdout.readline(), daemon.stdout.readline()
os.kill(daemon.pid, 19)
while open(f"/proc/{daemon.pid}/stat").read().rpartition(")")[2].split()[0] != "T":
    time.sleep(0.01)
os._exit(0)
"""


def test_a_left_over_worker_is_found_and_removed(apart: Lab) -> None:
    """It is stopped, so it has not seen that its owner went. A machine apart: here others' strays may be about."""
    machine = apart.hosts["alpha"].machine
    assert machine is not None
    machine.run(sys.executable, "-c", ORPHAN % TOKEN, user="ada")
    (stopped,) = [process for process in apart.hosts["alpha"].processes() if "phalanx_worker" in process.cmdline()]
    try:
        assert stopped.status() == psutil.STATUS_STOPPED
        record = apart.record("alpha")
        (stray,) = asyncio.run(look_for_strays(record, False)).left
        assert (stray.kind, stray.stopped) == ("daemon", True)
        report = asyncio.run(look_for_strays(record, True))
        assert report.removed == (stray.pid,) and report.left == ()
        until(lambda: not stopped.is_running() or stopped.status() == psutil.STATUS_ZOMBIE)
    finally:
        if stopped.is_running():
            stopped.send_signal(signal.SIGKILL)


def test_the_workers_of_a_living_run_are_no_strays(apart: Lab) -> None:
    machine = apart.hosts["alpha"].machine
    assert machine is not None

    async def look(process: WorkerProcess, worker: RemoteWorker) -> tuple[StrayReport, set[int], set[int]]:
        living = {process.pid for process in machine.processes()}
        report = await look_for_strays(apart.record("alpha"), clean=True)
        return report, living, {process.pid for process in machine.processes()}

    report, before, after = with_worker(apart.record("alpha"), look)
    assert report == StrayReport() and before and before <= after
