"""A group with members behind ssh: who is refused by the table, and what becomes of a run that loses one."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

import phalanx
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.ssh import private_directory
from phalanx_proto.errors import AdmissionRefused, PhalanxError, WorkerLost
from phalanx_proto.execution import Execution
from tests.hosts.lab import Lab
from tests.hosts.workers import write_group
from tests.system.groups import classifier, once_updating

pytestmark = pytest.mark.usefixtures("fresh")
ROOT = Path(__file__).parents[2]
ROWS = phalanx.datasets.synthetic(400, 8, 3, seed=1).rows("train")


def fit(execution: Execution, **more: object) -> phalanx.results.Fitted:
    config = phalanx.training(epochs=10, batch=40, rate=0.01, seed=3)
    return phalanx.fit(classifier(), ROWS, config, execution=execution, **more)  # type: ignore[arg-type]


def changed_copy(lab: Lab, file: str, before: str, after: str) -> str:
    """A Python on the hosts whose Phalanx differs in one file; its path."""
    copy = lab.folder / f"other-{Path(file).stem}"
    for name in ("proto", "worker", "coordinator", "client"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    assert before in text
    (copy / file).write_text(text.replace(before, after, 1))
    program = copy / "python"
    paths = ":".join(str(copy / name) for name in ("proto", "worker", "coordinator", "client"))
    program.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


def refused(record: WorkerRecord, folder: Path) -> PhalanxError:
    with pytest.raises(PhalanxError) as caught:
        fit(write_group(folder, [record]))
    for secret in (record.python, *record.ssh_options):
        assert str(secret) not in caught.value.message
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "before", "after", "field"),
    [
        ("proto/phalanx_proto/reduction.py", '"""', '"""Another edition. ', "source"),
        ("proto/phalanx_proto/handshake.py", "PROTOCOL = ", "PROTOCOL = 90 + ", "protocol"),
    ],
    ids=["source", "protocol"],
)
def test_another_edition_is_refused_by_the_table(
    lab: Lab, tmp_path: Path, file: str, before: str, after: str, field: str
) -> None:
    python = changed_copy(lab, file, before, after)
    error = refused(lab.record(python=python), tmp_path)
    assert isinstance(error, AdmissionRefused)
    rows = {row["field"] for row in error.details["rows"] if row["worker"] == "alpha"}
    assert field in rows and "phalanx enroll alpha --name alpha --into " in error.private


def test_more_slots_than_the_machine_has(lab: Lab, tmp_path: Path) -> None:
    execution = write_group(tmp_path, [lab.record(slots=200)])
    execution.file.write_text(execution.file.read_text().replace("oversubscribe = true", "oversubscribe = false"))
    with pytest.raises(PhalanxError, match=r"worker alpha cannot be ready: .* asked for 200 slots, found \d+, because"):
        fit(execution)


@pytest.mark.slow
def test_a_device_that_the_machine_has_not(lab: Lab, tmp_path: Path) -> None:
    execution = write_group(tmp_path, [lab.record()], "float32")
    execution.file.write_text(execution.file.read_text() + 'backend = "cuda"\n')
    with pytest.raises(PhalanxError, match=r"alpha.*cuda"):
        fit(execution)


def kill_daemon(lab: Lab, host: str) -> None:
    """End the worker there, but not its supervisor."""
    for process in lab.hosts[host].processes():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[1:3] == ["-m", "phalanx_worker"]:
                process.kill()


@pytest.mark.slow
def test_a_run_that_loses_a_member_names_it_and_tells_nothing_private(lab: Lab, tmp_path: Path) -> None:
    execution = write_group(tmp_path, [lab.record("alpha"), lab.record("beta", name="second")])
    lose = once_updating(lambda: kill_daemon(lab, "beta"), after=20)
    with pytest.raises(WorkerLost, match="worker second was ended by SIGKILL") as caught:
        fit(execution, progress=lose, output=tmp_path / "job")
    assert "noticed at" in str(caught.value)
    status = json.loads((tmp_path / "job" / "status.json").read_text())
    assert status["state"] == "FAILED" and status["reason"].startswith("worker second was ended by SIGKILL")
    told = (tmp_path / "job" / "status.json").read_text() + (tmp_path / "job" / "run-manifest.json").read_text()
    assert not any(secret in told for secret in (str(lab.folder), sys.executable, "-F"))


@pytest.mark.slow
def test_a_run_goes_on_without_a_lost_member_to_the_same_bits(lab: Lab, tmp_path: Path) -> None:
    alone = fit(phalanx.local(1))
    execution = write_group(tmp_path, [WorkerRecord(name="here", transport="local"), lab.record("alpha"), lab.record("beta")])
    lose = once_updating(lambda: kill_daemon(lab, "beta"), after=20)
    assert fit(execution, progress=lose, on_loss="rebalance", reproducible="bitwise").digest == alone.digest
    phalanx.shutdown()


COORDINATOR = """
import sys, phalanx
from tests.system.groups import classifier

rows = phalanx.datasets.synthetic(400, 8, 3, seed=1).rows("train")
config = phalanx.training(epochs=100_000, batch=40, rate=0.01, seed=3)
tell = lambda progress: print(progress.phase, flush=True)
phalanx.fit(classifier(), rows, config, execution=phalanx.cluster(sys.argv[1]), progress=tell)
"""


@pytest.mark.slow
@pytest.mark.parametrize("closed", [{}, {"AllowStreamLocalForwarding": "no"}], ids=["forward", "relay"])
def test_a_coordinator_that_is_killed_leaves_nothing_there(lab: Lab, tmp_path: Path, closed: dict[str, str]) -> None:
    with lab.server("alpha", **closed) as there:
        execution = write_group(tmp_path, [lab.record("alpha", *there)])
        command = [sys.executable, "-c", COORDINATOR, str(execution.file)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while process.stdout.readline().strip() != "updates":
                assert process.poll() is None
            assert lab.hosts["alpha"].processes()
            process.kill()
        assert lab.leftovers() == {}
    (left,) = Path(tempfile.gettempdir()).glob("phalanx-*")  # its own, which nobody was there to remove
    private_directory.sweep(left.parent, older_than=0.0)
    assert not left.exists()
