"""The guard of conftest.py itself: it finds what a test leaves, and passes a test that leaves nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

TESTS = """
import subprocess, sys, tempfile
from multiprocessing import shared_memory
from pathlib import Path

import pytest

SLEEP = "import time; time.sleep(60)"
kept = []

@pytest.fixture(scope="module")
def helper():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate(b"end")

def test_clean():
    subprocess.run([sys.executable, "-c", ""], check=True)
    with tempfile.TemporaryDirectory(prefix="phalanx-"):
        pass

def test_ends_soon():
    kept.append(subprocess.Popen([sys.executable, "-c", ""]))
    kept[-1].wait()

def test_with_helper(helper):
    assert helper.poll() is None

def test_again_with_helper(helper):
    assert helper.poll() is None

def test_child():
    kept.append(subprocess.Popen([sys.executable, "-c", SLEEP]))

def test_not_waited_for():
    kept.append(subprocess.Popen([sys.executable, "-c", ""]))

def test_orphan():
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])"
    subprocess.run([sys.executable, "-c", start], check=True)

def test_orphan_with_a_bare_environment():
    start = "import subprocess, sys; subprocess.Popen([sys.executable, '-m', 'phalanx_worker'], env={})"
    Path("phalanx_worker.py").write_text(SLEEP)
    subprocess.run([sys.executable, "-c", start], check=True)

def test_folder():
    tempfile.mkdtemp(prefix="phalanx-")

def test_other_name():
    tempfile.mkdtemp(prefix="other-")

@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm on this system")
def test_memory():
    shared_memory.SharedMemory(f"phalanx-test-{PID}", create=True, size=4096).close()
"""

LEAVE = {
    "test_child": "process ",
    "test_not_waited_for": "process ",
    "test_orphan": "process ",
    "test_orphan_with_a_bare_environment": "process ",
    "test_folder": "file ",
    "test_memory": "file /dev/shm/phalanx-test-",
}
CLEAN = ("test_clean", "test_ends_soon", "test_with_helper", "test_again_with_helper", "test_other_name")


def run(folder: Path, part: str, text: str) -> dict[str, list[str]]:
    """Run ``text`` as tests below ``part`` under a copy of the guard; returns each test's errors."""
    conftest = Path(__file__).with_name("conftest.py").read_text("utf-8")
    assert "PATIENCE_SECONDS = 5.0" in conftest
    (folder / "conftest.py").write_text(conftest.replace("PATIENCE_SECONDS = 5.0", "PATIENCE_SECONDS = 0.3"))
    (folder / part).mkdir()
    (folder / part / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    command += ["--rootdir=.", "--junit-xml=report.xml", part]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=120, check=False)
    cases: dict[str, list[str]] = {}
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        errors = [error.text or "" for error in case if error.tag in {"error", "failure"}]
        cases.setdefault(case.get("name", ""), []).extend(errors)
    return cases


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return run(tmp_path_factory.mktemp("guarded"), "system", TESTS.replace("{PID}", str(os.getpid())))


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_test_passes(outcome: dict[str, list[str]], name: str) -> None:
    assert outcome[name] == []


@pytest.mark.parametrize("name", LEAVE)
def test_what_is_left_is_named_and_removed(outcome: dict[str, list[str]], name: str) -> None:
    if name == "test_memory" and not Path("/dev/shm").is_dir():
        pytest.skip("no /dev/shm on this system")
    (error,) = outcome[name]
    assert len(error.splitlines()) == 2, error
    title, left = error.splitlines()
    assert title == "Left behind:"
    assert left.strip().startswith(LEAVE[name])
    what = left.split()[1]
    if LEAVE[name] == "process ":
        deadline = time.monotonic() + 10
        while is_alive(int(what.rstrip(":"))) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_alive(int(what.rstrip(":")))
    else:
        assert not Path(what).exists()


def test_every_part_is_judged_at_the_end_of_the_session(tmp_path: Path) -> None:
    text = "import tempfile\ndef test_one(): tempfile.mkdtemp(prefix='phalanx-')\ndef test_two(): pass\n"
    outcome = run(tmp_path, "proto", text)
    assert outcome["test_one"] == []
    assert len(outcome["test_two"]) == 1
