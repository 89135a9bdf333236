"""What enrolling takes, and what is said when it fails: without a machine."""

import base64
import csv
import dataclasses
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from phalanx_coordinator.cluster.reading import parse_cluster
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.enroll import failures, plan
from phalanx_coordinator.enroll.enroll import cluster_text, environment_of, record_for
from phalanx_coordinator.enroll.plan import Enrolment, Interpreter, Machine
from phalanx_coordinator.enroll.wheel import build_wheel
from phalanx_proto import fingerprint
from phalanx_proto.errors import InvalidCluster, InvalidRequest
from phalanx_proto.version import VERSION

LINUX = Machine(
    python=(3, 12, 3), executable="/usr/bin/python3.12", system="linux", machine="x86_64", libc=("glibc", "2.31"), macos="",
    directory="/home/me/.local/share/phalanx", enrolled=False, taken=False, writable=True, free=10**12, uv=None, venv=True,
)  # fmt: skip
MAC = dataclasses.replace(LINUX, system="darwin", machine="arm64", libc=("", ""), macos="14.5")


@pytest.mark.parametrize(
    ("host", "taken", "name"),
    [
        ("atlas", [], "atlas"),
        ("me@atlas.lab.example.org", [], "atlas"),
        ("ssh://me@atlas.lab:2222", [], "atlas"),
        ("me@192.168.0.7", [], "192-168-0-7"),
        ("gpu_node", [], "gpu-node"),
        ("atlas", ["Atlas", "atlas-2"], "atlas-3"),
        ("::1", [], "worker"),
        ("x" * 80, [], "x" * 50),
    ],
)
def test_names_come_from_hosts(host: str, taken: list[str], name: str) -> None:
    assert plan.name_for(host, taken) == name


def python(minor: int, path: str = "/usr/bin/python") -> Interpreter:
    return Interpreter(version=(3, minor), path=path)


def test_our_own_python_is_preferred_and_old_ones_are_not_taken() -> None:
    found = [python(9), python(13), python(12)]
    assert plan.choose(found, (3, 12)) == python(12)
    assert plan.choose(found, (3, 11)) == python(13)
    assert plan.choose(found, (3, 11), oldest=(3, 13)) == python(13)
    assert plan.choose([python(9), python(10)], (3, 12)) is None
    assert plan.choose([python(11)], (3, 12), oldest=(3, 12)) is None


def test_interpreters_are_read_among_what_a_login_prints() -> None:
    text = "Welcome!\nphalanx-python 3 12 /opt/my python/bin/python\nphalanx-python x y z\n"
    assert plan.read_interpreters(text) == [python(12, "/opt/my python/bin/python")]
    assert "show '/a b/python'" in plan.find_script("/a b/python", (3, 12))
    assert plan.find_script(None, (3, 13)).count("python3.13") == 1


def test_exactly_our_jax_with_the_plugin_that_we_have() -> None:
    assert plan.requirements("cpu", "0.10.1", "0.10.1", []) == ["jax==0.10.1", "jaxlib==0.10.1"]
    assert plan.requirements("cuda", "0.10.1", "0.10.1", [])[0] == "jax[cuda12]==0.10.1"
    assert plan.requirements("cuda", "0.12", "0.12", ["jax-cuda13-plugin"])[0] == "jax[cuda13]==0.12"


def test_wheels_for_a_machine() -> None:
    tags = plan.platform_tags(LINUX)
    assert tags[0] == "manylinux_2_31_x86_64" and "manylinux_2_17_x86_64" in tags and "manylinux2014_x86_64" in tags
    assert "manylinux_2_32_x86_64" not in tags
    mac = plan.platform_tags(MAC)
    assert mac[0] == "macosx_14_0_arm64" and "macosx_11_0_universal2" in mac and "macosx_15_0_arm64" not in mac
    with pytest.raises(InvalidRequest, match="not glibc"):
        plan.platform_tags(dataclasses.replace(LINUX, libc=("musl", "1.2")))
    arguments = plan.download_arguments(LINUX, Path("/w/p.whl"), ["jax==1"], Path("/w"))
    assert arguments[-2:] == ["/w/p.whl[worker]", "jax==1"] and arguments[arguments.index("--python-version") + 1] == "3.12"


def test_what_will_be_done_is_said() -> None:
    asked = Enrolment(host="h", into=Path("group.toml"))
    words = " ".join(plan.steps(LINUX, asked, "atlas", ["jax==1"], VERSION))
    assert "make an environment in /home/me/.local/share/phalanx with venv and pip" in words
    assert "index" in words and "group.toml" in words and "never use sudo" in words
    again = dataclasses.replace(LINUX, enrolled=True, uv="/bin/uv")
    words = " ".join(plan.steps(again, dataclasses.replace(asked, into=None, offline=True), "atlas", ["jax==1"], VERSION))
    assert "renew the environment" in words and "with uv" in words and "sent along" in words and "write" not in words


def test_the_far_sides_answer_is_read() -> None:
    answer: dict[str, Any] = {
        "python": [3, 12, 3], "executable": "/usr/bin/python3.12", "system": "linux", "machine": "x86_64",
        "libc": ["glibc", "2.31"], "macos": "", "directory": LINUX.directory, "mark": None, "taken": False, "writable": True,
        "free": 10**12, "uv": None, "venv": True,
    }  # fmt: skip
    assert plan.read_machine(answer) == LINUX


# Failures


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"taken": True}, "not_ours"),
        ({"writable": False}, "not_writable"),
        ({"venv": False}, "no_venv"),
        ({"free": 10**8}, "disk_full"),
    ],
)
def test_what_would_fail_is_known_before_anything_is_changed(changed: dict[str, Any], kind: str) -> None:
    found = failures.obstacle(dataclasses.replace(LINUX, **changed))
    assert found is not None and found.details["failure"] == kind and found.private
    assert "/home/me" not in found.message


@pytest.mark.parametrize("changed", [{}, {"taken": True, "enrolled": True}, {"venv": False, "uv": "/uv"}])
def test_what_is_no_obstacle(changed: dict[str, Any]) -> None:
    assert failures.obstacle(dataclasses.replace(LINUX, **changed)) is None


@pytest.mark.parametrize(
    ("kind", "output", "failure", "step"),
    [
        ("install", "ERROR: Could not install: [Errno 28] No space left on device", "disk_full", "make room"),
        ("disk_full", "", "disk_full", "make room"),
        ("environment", "The virtual environment was not created because ensurepip is not available", "no_venv", "install uv"),
        ("install", "NewConnectionError(': Failed to establish a new connection: [Errno 111]')", "no_index", "--offline"),
        ("install", "error: Failed to fetch: `https://…/jax/`\n Caused by: dns error", "no_index", "--offline"),
        ("install", "ERROR: No matching distribution found for jaxlib==0.10.1", "no_package", "--python"),
        ("install", "Because there is no version of jax==9 and you require", "no_package", "--python"),
        ("install", "something else", "install", "something else"),
        ("busy", "", "busy", "wait"),
        ("in_use", "", "in_use", "phalanx doctor"),
        ("not_ours", "", "not_ours", "--directory"),
    ],
)
def test_each_refusal_has_a_next_step(kind: str, output: str, failure: str, step: str) -> None:
    found = failures.refused(kind, "pip ended with exit status 1", output)
    assert found.details["failure"] == failure and step in found.private
    assert found.exit_code == 3 and "fetch" not in found.message


def test_no_python_says_what_was_found() -> None:
    found = failures.no_python([python(9), python(10)], (3, 12), None)
    assert "no Python 3.12 or newer; found: 3.10, 3.9" in found.message and "uv python install" in found.private
    assert "not there" in failures.no_python([], (3, 11), "/x").message
    assert "no pip" in failures.no_download("/x/python: No module named pip").message
    assert "  pip: words" in failures.no_download("pip: words").private


# Records


FILE = """version = 2
precision = "float32"
[[worker]]
name = "atlas"
transport = "ssh"
host = "me@atlas"
python = "/old/venv/bin/python"
ssh_options = ["-F", "x"]
slots = 6
weight = 3
[[worker]]
name = "here"
transport = "local"
"""
GROUP = parse_cluster(FILE.encode())


def test_the_same_machine_keeps_its_record() -> None:
    old, record = record_for(Enrolment(host="me@atlas"), GROUP)
    assert old == GROUP.workers[0]
    assert (record.name, record.slots, record.weight, record.ssh_options) == ("atlas", 6, 3.0, ("-F", "x"))
    old, record = record_for(Enrolment(host="other", name="ATLAS", slots=2, ssh_options=()), GROUP)
    assert old is not None and (record.name, record.host, record.slots, record.ssh_options) == ("atlas", "other", 2, ())


def test_another_machine_gets_a_new_record() -> None:
    old, record = record_for(Enrolment(host="you@atlas.org", backend="cuda"), GROUP)
    assert old is None and (record.name, record.backend, record.transport) == ("atlas-2", "cuda", "ssh")
    with pytest.raises(InvalidRequest, match="is on this machine"):
        record_for(Enrolment(host="x", name="here"), GROUP)


def test_the_cluster_file_is_judged_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    assert cluster_text(Enrolment(host="h", into=path)) == 'version = 2\nprecision = "float64"\n'
    assert "float32" in cluster_text(Enrolment(host="h", backend="mps"))
    path.write_text(FILE)
    path.chmod(0o644)
    with pytest.raises(InvalidCluster, match="mode 0644"):
        cluster_text(Enrolment(host="h", into=path))
    path.chmod(0o600)
    assert cluster_text(Enrolment(host="h", into=path, dtype="float32")) == FILE
    with pytest.raises(InvalidRequest, match="is float32"):
        cluster_text(Enrolment(host="h", into=path, dtype="float64"))


def test_only_an_environment_of_enrolls_own_shape_is_taken_for_one() -> None:
    record = WorkerRecord(name="a", transport="ssh", host="h", python="/home/me/p/venv/bin/python")
    assert environment_of(record) == "/home/me/p"
    for other in ("/usr/bin/python3", "/home/me/venv/bin/python3", None):
        assert environment_of(dataclasses.replace(record, python=other)) is None


# The wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_numeric_sources_of_this_installation(wheel: Path) -> None:
    assert wheel.name == f"phalanx-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        sources = {name: archive.read(name) for name in fingerprint.numeric_sources()}
        names = archive.namelist()
    assert fingerprint.fingerprint_of(sources) == fingerprint.source_fingerprint()
    assert {"phalanx/data/iris.csv", "phalanx/py.typed", "phalanx_proto/v1/worker_service_pb2_grpc.py"} <= set(names)
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in names)


def test_the_wheel_is_valid(wheel: Path) -> None:
    info = f"phalanx-{VERSION}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        record = archive.read(f"{info}/RECORD").decode()
        rows = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(record))}
        assert set(rows) == set(archive.namelist()) and rows[f"{info}/RECORD"] == ("", "")
        for name in archive.namelist():
            digest, size = rows[name]
            content = archive.read(name)
            if digest:
                expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={expected}", len(content))
        text = archive.read(f"{info}/METADATA").decode()
        assert f"\nVersion: {VERSION}\n" in text and "Provides-Extra: worker" in text
        assert b"phalanx = phalanx.cli:main" in archive.read(f"{info}/entry_points.txt")
        assert any(name.startswith(f"{info}/licenses/") for name in archive.namelist())


def test_the_same_sources_give_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    assert build_wheel(tmp_path).read_bytes() == wheel.read_bytes()
