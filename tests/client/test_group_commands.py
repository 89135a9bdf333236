"""``phalanx cluster``, ``doctor`` and ``enroll`` without machines: what is parsed, passed on and printed; exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from phalanx import embedded
from phalanx.cli import app
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.enroll.enroll import Enrolled, Removed
from phalanx_coordinator.enroll.plan import Enrolment
from phalanx_coordinator.members.findings import Examination, Expected, Finding, StrayReport, StrayWorker
from phalanx_proto.errors import InvalidCluster, PhalanxError, Unavailable

TEXT = "ANER_CLUSTER 2\nprecision Float32\nlaptop local - - 2 cpu\natlas ssh me@secret /opt/p/bin/python 1 cuda 2\n"
RECORD = WorkerRecord(name="atlas", transport="ssh", host="me@secret", python="/v/venv/bin/python", slots=2)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="phalanx")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "group.aner"
    path.touch(mode=0o600)
    path.write_text(TEXT)
    return path


def test_a_file_is_checked_and_nothing_private_is_shown(file: Path) -> None:
    result = run("cluster", "check", file)
    assert result.stdout.splitlines() == [
        "2 workers, float32",
        "laptop  local   2 slots    cpu      weight 1",
        "atlas   ssh     1 slot     cuda 0   weight 2",
    ]
    found = json.loads(run("cluster", "check", file, "--json").stdout)
    assert [worker["name"] for worker in found["workers"]] == ["laptop", "atlas"]
    assert "secret" not in str(found)


def test_that_more_slots_are_admitted_is_said(file: Path) -> None:
    file.write_text('version = 2\nprecision = "float32"\noversubscribe = true\n[[worker]]\nname = "a"\ntransport = "local"\n')
    assert run("cluster", "check", file).stdout.splitlines()[0] == "1 worker, float32, oversubscribe"


def test_every_fault_is_told_with_exit_code_2(file: Path) -> None:
    file.write_text(TEXT.replace(" 2 cpu", " 0 cpu").replace("/opt", "opt"))
    result = run("cluster", "check", file)
    assert result.exit_code == 2 and result.stdout == ""
    assert "line 3: worker laptop: slots" in result.stderr and "line 4: worker atlas: python" in result.stderr


def test_a_file_is_converted(file: Path, tmp_path: Path) -> None:
    printed = run("cluster", "convert", file).stdout
    assert printed.startswith("# Converted. python must name") and 'host = "me@secret"' in printed
    new = tmp_path / "group.toml"
    assert run("cluster", "convert", file, "--into", new).exit_code == 0
    assert new.read_text() == printed and new.stat().st_mode & 0o777 == 0o600
    assert run("cluster", "check", new).stdout == run("cluster", "check", file).stdout
    again = run("cluster", "convert", file, "--into", new)
    assert again.exit_code == 2 and "is there already" in again.stderr


def examination(*findings: Finding) -> Examination:
    expected = Expected(phalanx="1", python="3", jax="1", jaxlib="1", source="s", dtype="float32")
    return Examination(expected=expected, findings=findings, steps={"atlas": "ssh-keyscan secret"})


def failed() -> Finding:
    return Finding(record=RECORD, failure=Unavailable("worker atlas was not trusted", failure="unknown_key"))


def test_the_doctor_says_what_is_wrong_and_ends_with_3(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    asked: list[Any] = []

    def examine_group(path: Path, *, clean: bool, tell: Any) -> Examination:
        asked.append((path, clean))
        tell("a step")
        return examination(failed())

    monkeypatch.setattr(embedded, "examine_group", examine_group)
    result = run("doctor", file)
    assert result.exit_code == 3 and result.stderr == "a step\n"
    assert "unknown key" in result.stdout and "next: ssh-keyscan secret" in result.stdout
    result = run("doctor", file, "--json", "--clean")
    assert (result.exit_code, result.stderr) == (3, "") and asked == [(file, False), (file, True)]
    assert json.loads(result.stdout)["workers"][0]["failure"]["kind"] == "unknown_key"


def test_strays_are_told_with_the_command_that_ends_them(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    stray = StrayWorker(pid=7, kind="daemon", processes=2, started=0.0, stopped=True)
    found = examination(Finding(record=RECORD, strays=StrayReport(strays=(stray,))))
    monkeypatch.setattr(embedded, "examine_group", lambda *ignored, **named: found)
    assert run("doctor", file).stdout.endswith(
        f"What is left over of workers can be ended and removed: phalanx doctor {file} --clean\n"
    )


def test_a_cluster_file_with_faults_is_no_group_to_examine(file: Path) -> None:
    file.chmod(0o644)
    result = run("doctor", file)
    assert result.exit_code == InvalidCluster.exit_code and "chmod 600" in result.stderr


def enrolled(asked: Enrolment, tell: Any) -> Enrolled:
    tell("will do it")
    return Enrolled(record=RECORD, examination=None, steps=("do it",), written=None if asked.dry_run else asked.into)


def test_enrolling_passes_everything_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Enrolment] = []

    def enroll_machine(request: Enrolment, tell: Any) -> Enrolled:
        asked.append(request)
        return enrolled(request, tell)

    monkeypatch.setattr(embedded, "enroll_machine", enroll_machine)
    path = tmp_path / "group.toml"
    result = run("enroll", "me@atlas", "--into", path)
    assert (result.exit_code, result.stderr) == (0, "will do it\n")
    assert result.stdout == f"atlas can join: 2 slots on cpu. Its record is in {path}\n"
    everything = [
        "--name",
        "a",
        "--slots",
        "3",
        "--backend",
        "cuda",
        "--dtype",
        "float32",
        "--python",
        "/p",
        "--directory",
        "/d",
    ]
    run("enroll", "h", *everything, "--offline", "--dry-run", "--ssh-option=-F", "--ssh-option", "/x y")
    assert asked == [
        Enrolment(host="me@atlas", into=path),
        Enrolment(
            host="h", name="a", slots=3, backend="cuda", dtype="float32", python="/p", directory="/d", offline=True,
            dry_run=True, ssh_options=("-F", "/x y"),
        ),
    ]  # fmt: skip


def test_without_a_file_the_record_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "enroll_machine", enrolled)
    assert '[[worker]]\nname = "atlas"' in run("enroll", "h").stdout
    assert run("enroll", "h", "--dry-run").stdout == "will do it\nnothing was changed (--dry-run)\n"
    found = json.loads(run("enroll", "h", "--json").stdout)
    assert found["steps"] == ["do it"] and found["written"] is None and "[[worker]]" in found["record"]


def test_removing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    asked: list[Any] = []

    def remove_machine(name: str, file: Path, tell: Any, *, dry_run: bool) -> Removed:
        asked.append((name, file, dry_run))
        return Removed(environment=True, steps=("remove it",), last=dry_run)

    monkeypatch.setattr(embedded, "remove_machine", remove_machine)
    result = run("enroll", "--remove", "atlas", "--into", path)
    assert result.stdout == "atlas: its environment and its record are removed\n"
    result = run("enroll", "--remove", "atlas", "--into", path, "--dry-run")
    lines = result.stdout.splitlines()
    assert lines[:2] == ["will remove it", "nothing was changed (--dry-run)"]
    assert lines[2].startswith(f"{path} would have no worker left")
    assert asked == [("atlas", path, False), ("atlas", path, True)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a machine"),
        (["host", "--remove", "a", "--into", "f"], "--remove takes no HOST"),
        (["host", "--ssh-option", "-F /path"], "write --ssh-option=-F --ssh-option=/path"),
        (["host", "--ssh-option", "-o ProxyCommand=nc a b"], "write --ssh-option=-o '--ssh-option=ProxyCommand=nc a b'"),
        (["host", "--ssh-option=-N", "--ssh-option=-oRemoteCommand=x"], "--ssh-option must not give RemoteCommand"),
        (["--remove", "a"], "--into FILE"),
    ],
)
def test_contradictions(arguments: list[str], words: str) -> None:
    result = run("enroll", *arguments)
    assert isinstance(result.exception, PhalanxError) or result.exit_code == 2
    assert words in result.stderr or words in str(result.exception)
