"""Enrolling a machine behind a stand-in for ssh: the order of things, what is written when, and what a failure leaves."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx_coordinator.cluster.reading import read_cluster
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.enroll import enroll, far_side
from phalanx_coordinator.enroll.enroll import Enrolled, Enroller
from phalanx_coordinator.enroll.plan import Enrolment
from phalanx_coordinator.members.findings import Examination, Expected, Finding
from phalanx_coordinator.members.timing import Deadlines
from phalanx_proto.errors import InvalidRequest, PhalanxError, Unavailable
from phalanx_worker.inventory import inventory
from tests.coordinator.far_machine import FarMachine, make_far_machine

EXPECTED = Expected(phalanx="", python="", jax="", jaxlib="", source="", dtype="float64")


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FarMachine:
    return make_far_machine(tmp_path, monkeypatch)


def run(asked: Enrolment) -> tuple[Enrolled, list[str]]:
    told: list[str] = []
    work = enroll.enroll(asked, inventory(False), deadlines=Deadlines(), log=lambda worker, line: None, tell=told.append)
    return asyncio.run(work), told


def failure(asked: Enrolment) -> PhalanxError:
    with pytest.raises(PhalanxError) as caught:
        run(asked)
    return caught.value


@pytest.fixture
def unproved(monkeypatch: pytest.MonkeyPatch) -> list[WorkerRecord]:
    """Lets every record pass the proof, which has a test of its own; gives those that were to be proved."""
    proved: list[WorkerRecord] = []

    async def prove(self: Enroller, record: WorkerRecord) -> Examination:
        proved.append(record)
        return Examination(expected=EXPECTED, findings=(Finding(record=record),))

    monkeypatch.setattr(Enroller, "_prove", prove)
    return proved


def test_a_machine_is_enrolled_and_proved_by_a_handshake(far: FarMachine, tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    found, told = run(Enrolment(host="me@atlas.lab", into=path, slots=1))
    record = read_cluster(path).workers[0]
    assert (record.name, record.transport, record.host, record.slots) == ("atlas", "ssh", "me@atlas.lab", 1)
    assert record.python == str(far.environment / "venv/bin/python")
    assert path.stat().st_mode & 0o777 == 0o600
    assert found.examination is not None and found.examination.can_join
    assert json.loads((far.environment / far_side.MARK).read_text())["complete"] is True
    assert sorted(entry.name for entry in far.environment.iterdir()) == [far_side.MARK, "venv"]
    will, did = told[0], told.index("making a virtual environment with uv")
    assert will.startswith("will make an environment in") and did > 3
    venv, first, second = far.installed()
    assert venv.startswith("venv --quiet --clear --python ") and "phalanx-0.1.0-py3-none-any.whl[worker]" in first
    assert "jax==" in first and "jaxlib==" in first and "--no-deps --reinstall" in second


def test_enrolling_again_renews_the_same_record(far: FarMachine, tmp_path: Path, unproved: list[WorkerRecord]) -> None:
    path = tmp_path / "group.toml"
    run(Enrolment(host="atlas", into=path, slots=3, directory="~/elsewhere"))
    path.write_text("# mine\n" + path.read_text() + "weight = 2  # twice\n")
    found, told = run(Enrolment(host="atlas", into=path))
    assert path.read_text().startswith("# mine\n") and "weight = 2  # twice" in path.read_text()
    (record,) = read_cluster(path).workers
    assert (record.slots, record.weight) == (3, 2.0) and found.record == record
    assert record.python == str(far.home / "elsewhere/venv/bin/python") and not far.environment.exists()
    assert told[0].startswith("will renew the environment") and "making a virtual environment with uv" not in told
    assert len([line for line in far.installed() if line.startswith("venv")]) == 1


def test_slots_are_what_the_machine_has(far: FarMachine, unproved: list[WorkerRecord]) -> None:
    found, _ = run(Enrolment(host="atlas"))
    assert found.written is None and found.record.slots >= 1 and 'host = "atlas"' in found.text
    found, _ = run(Enrolment(host="atlas", backend="cuda"))
    assert (found.record.slots, found.record.backend) == (1, "cuda")
    assert any("jax[cuda12]==" in line for line in far.installed())


def test_a_dry_run_changes_nothing(far: FarMachine, tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    found, told = run(Enrolment(host="atlas", into=path, dry_run=True))
    assert found.written is None and found.examination is None and len(found.steps) >= 4 and told == []
    assert not path.exists() and not far.environment.exists() and far.installed() == []
    assert f'python = "{far.environment}/venv/bin/python"' in found.text and "slots" not in found.text
    assert "slots = 3" in run(Enrolment(host="atlas", slots=3, dry_run=True))[0].text


def test_what_is_wrong_with_the_file_is_said_before_the_machine_is_asked(far: FarMachine, tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    path.touch(mode=0o600)
    path.write_text("ANER_CLUSTER 1\na local - - 1\n")
    assert "earlier text format" in failure(Enrolment(host="atlas", into=path)).message
    assert "letters, digits and hyphens" in failure(Enrolment(host="atlas", name="a b")).message
    assert not (far.home / "ssh.log").exists()


def test_a_failed_installation_writes_no_record_and_can_be_repeated(
    far: FarMachine, tmp_path: Path, unproved: list[WorkerRecord]
) -> None:
    path = tmp_path / "group.toml"
    far.fail("error: Failed to fetch: `https://index/simple/jax/`\n  Caused by: dns error")
    error = failure(Enrolment(host="atlas", into=path))
    assert "reaches no package index" in error.message and "--offline" in error.private and "dns error" in error.private
    assert not path.exists() and unproved == []
    assert sorted(entry.name for entry in far.environment.iterdir()) == [far_side.MARK, "venv"]
    far.mend()
    run(Enrolment(host="atlas", into=path))
    assert path.exists()


def test_a_machine_that_cannot_join_gets_no_record(far: FarMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ({"worker": "atlas", "field": "jax", "wanted": "1", "found": "2"},)

    async def examine(group: object, *ignored: object, **named: object) -> Examination:
        record = WorkerRecord(name="atlas", transport="ssh", host="atlas")
        return Examination(
            expected=EXPECTED, findings=(Finding(record=record, refusals=rows),), steps={"atlas": "install"}
        )  # fmt: skip

    monkeypatch.setattr(enroll, "examine", examine)
    path = tmp_path / "group.toml"
    error = failure(Enrolment(host="atlas", into=path))
    assert "cannot join, so its record was not written: jax: wanted 1, found 2" in error.message and error.private == "install"
    assert not path.exists()


def test_a_host_that_is_not_there(far: FarMachine) -> None:
    error = failure(Enrolment(host="nowhere", name="lost"))
    assert error.message.startswith("worker lost") and "nowhere" not in error.message
    assert "nowhere" in error.private


def test_a_python_that_is_not_there(far: FarMachine) -> None:
    assert "is not there, or does not run" in failure(Enrolment(host="atlas", python="/no/python")).message


def test_a_directory_of_somebody_else_is_left_alone(far: FarMachine, tmp_path: Path) -> None:
    far.environment.mkdir(parents=True)
    (far.environment / "thesis.tex").write_text("years of work")
    error = failure(Enrolment(host="atlas"))
    assert "in use by something else" in error.message and "--directory" in error.private
    assert far.installed() == [] and (far.environment / "thesis.tex").exists()


def test_removing_takes_the_environment_and_then_the_record(
    far: FarMachine, tmp_path: Path, unproved: list[WorkerRecord]
) -> None:
    path = tmp_path / "group.toml"
    run(Enrolment(host="atlas", into=path))
    text, mark, told = path.read_text(), (far.environment / far_side.MARK).read_text(), list[str]()
    (far.environment / far_side.MARK).unlink()
    with pytest.raises(Unavailable, match="not made by phalanx enroll"):
        asyncio.run(enroll.remove("atlas", path, told.append))
    assert (far.environment / "venv").exists() and path.read_text() == text
    (far.environment / far_side.MARK).write_text(mark)
    planned = asyncio.run(enroll.remove("atlas", path, told.append, dry_run=True))
    assert planned.environment and planned.last and "remove the record atlas from" in planned.steps[-1]
    assert (far.environment / "venv").exists() and path.read_text() == text and told == []
    assert asyncio.run(enroll.remove("atlas", path, told.append)).environment
    assert told[0].startswith("will remove ") and not far.environment.exists()
    assert "atlas" not in path.read_text()


def test_what_enroll_did_not_make_is_not_removed(far: FarMachine, tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    path.touch(mode=0o600)
    path.write_text(
        'version = 2\nprecision = "float32"\n[[worker]]\nname = "a"\ntransport = "ssh"\nhost = "h"\npython = "/bin/python3"\n'
    )
    with pytest.raises(InvalidRequest, match="was not made by phalanx enroll"):
        asyncio.run(enroll.remove("a", path, lambda text: None))


# The far side alone


def test_a_directory_is_not_filled_while_something_runs_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # however narrow ps believes its lines to be
    python = tmp_path / "p" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    command = [str(python), "-c", "print(flush=True); input()"]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={})
    assert running.stdout is not None
    try:
        running.stdout.readline()  # from here on its command line can be read
        with pytest.raises(far_side.Refused, match=f"process {running.pid}"):
            far_side.refuse_if_in_use(tmp_path / "p")
    finally:
        running.communicate(b"\n")
    far_side.refuse_if_in_use(tmp_path / "p")


def test_what_pip_is_configured_with_reaches_uv(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://mirror/simple\n[install]\nextra-index-url = https://a\n  https://b\n")
    found = far_side.own_index({"PIP_CONFIG_FILE": str(config)})
    assert found == {"UV_DEFAULT_INDEX": "https://mirror/simple", "UV_INDEX": "https://a https://b"}
    assert (
        far_side.own_index({"PIP_INDEX_URL": "https://env", "PIP_CONFIG_FILE": str(config)})["UV_DEFAULT_INDEX"]
        == "https://env"
    )
    assert far_side.own_index({"UV_INDEX_URL": "x", "PIP_CONFIG_FILE": str(config)}) == {}


def test_removing_leaves_what_it_did_not_make(tmp_path: Path) -> None:
    place = tmp_path / "p"
    (place / "venv").mkdir(parents=True)
    (place / "mine.txt").touch()
    (place / far_side.MARK).write_text(json.dumps({"made_by": "phalanx enroll"}))
    assert far_side.remove({"directory": str(place)}, None) == {"removed": True, "left": ["mine.txt"]}  # type: ignore[arg-type]
    assert far_side.remove({"directory": str(tmp_path / "none")}, None)["removed"] is False  # type: ignore[arg-type]


def test_the_far_side_ends_with_its_connection(far: FarMachine, tmp_path: Path) -> None:
    """The near side goes while the installer is at work: neither stays."""
    uv = far.home / "bin" / "uv"
    uv.write_text('#!/bin/sh\necho started > "$HOME/started"\nexec sleep 600\n')
    request: dict[str, object] = {
        "operation": "install",
        "directory": str(tmp_path / "p"),
        "files": [{"name": "a.whl", "size": 1}],
        "wheel": "a.whl",
    }
    request |= {"offline": False, "version": "1", "requirements": []}
    process = subprocess.Popen(
        [sys.executable, "-I", far_side.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        env={"HOME": str(far.home), "PATH": f"{far.home}/bin:/usr/bin:/bin"},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\nx")
    process.stdin.flush()
    while not (far.home / "started").exists():
        assert process.poll() is None
    process.stdin.close()
    assert process.wait(60) == -9
    process.stdout.close()
