"""The command line as a person runs it: real processes, and nothing left behind (the guard in ``tests/conftest.py``)."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

TIMEOUT = 240
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from phalanx.cli import main; main()"
"""A run that was started in the background ignores SIGINT, and so would what it starts."""


def phalanx(*arguments: str | int | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "phalanx", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def test_a_fit_prints_its_result_and_keeps_it(tmp_path: Path) -> None:
    job = tmp_path / "job"
    ran = phalanx("fit", "--data", "iris", "--epochs", 2, "--workers", 1, "--json", "--quiet", "--output", job)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == (job / "result.json").read_text("utf-8")
    result, manifest, status = json.loads(ran.stdout), read(job / "run-manifest.json"), read(job / "status.json")
    assert (result["kind"], result["level"], result["dtype"], result["updates"]) == ("fit", "bitwise", "float64", 6)
    assert [result[role]["rows"] for role in ("train", "validation", "test")] == [90, 30, 30]
    assert [member["rows"] for member in result["members"]] == [180]
    assert set(result["seconds"]) == {"setup", "updates", "validation", "total"}
    assert [manifest["data"][role]["rows"] for role in ("train", "validation", "test")] == [90, 30, 30]
    assert status["state"] == "COMPLETE"
    again = phalanx("fit", "--data", "iris", "--workers", 1, "--output", job)
    assert again.returncode == 2
    assert again.stderr == f"error: the output directory {job} is there already; name a new one\n"
    assert read(job / "status.json") == status


def test_a_simulation_gives_the_known_answer() -> None:
    ran = phalanx("simulate", "--samples", "1e6", "--seed", 42, "--workers", 1, "--json", "--quiet")
    assert (ran.returncode, ran.stderr) == (0, "")
    result = json.loads(ran.stdout)
    assert (result["samples"], result["hits"], result["estimate"]) == (1_000_000, 785_856, 3.143424)


def test_a_regression_shows_its_digest_and_coefficients() -> None:
    ran = phalanx("regression", "--samples", 1000, "--steps", 3, "--workers", 1)
    assert ran.returncode == 0
    lines = ran.stdout.splitlines()
    assert lines[0].split()[0] == "digest"
    assert lines[-1].startswith("parameters  8 coefficients")


def test_the_inventory_is_json_and_names_nobody() -> None:
    ran = phalanx("inventory", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["slots"] >= 1


def test_more_workers_than_slots_are_refused() -> None:
    ran = phalanx("simulate", "--samples", 1000, "--workers", 256)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr.startswith("error: local(workers=256)")


def test_a_worker_is_not_started_by_hand() -> None:
    command = [sys.executable, "-m", "phalanx", "worker", "--slots", "1"]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert ran.returncode != 0
    assert "started by a coordinator" in json.loads(ran.stdout)["error"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_everything(tmp_path: Path, number: signal.Signals, code: int) -> None:
    job = tmp_path / "job"
    arguments = ["simulate", "--samples", "1e12", "--chunk", "1e7", "--workers", "1", "--quiet", "--output", str(job)]
    command = [sys.executable, "-c", INTERRUPTIBLE, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_work(process, job / "status.json")
        engines = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        output, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, output) == (code, "")
    assert errors == f"error: ended by {number.name}; everything that was started has ended\n"
    assert engines
    assert [engine for engine in engines if is_alive(engine)] == []
    assert read(job / "status.json")["state"] == "CANCELLED"
    assert not (job / "result.json").exists()


def is_alive(process: psutil.Process) -> bool:
    """A zombie is not alive: it only waits for the system to take note."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def wait_for_work(process: "subprocess.Popen[str]", status: Path) -> None:
    """Until samples are being counted; fails if the process ends before."""
    deadline = time.monotonic() + TIMEOUT
    while not (status.exists() and read(status)["phase"] == "samples"):
        assert time.monotonic() < deadline
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"it ended with exit code {process.wait(timeout=0.05)}")
