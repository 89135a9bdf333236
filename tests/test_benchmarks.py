"""The arithmetic of the benchmarks: medians, ratios within rounds, goals, disagreements, and a peer that is absent."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.contenders import ROOT, Contender, Sample, run
from benchmarks.question import Measured, at_most, disagreements, fastest_group, times_as_fast
from benchmarks.simulation import QUESTION


def measured(**seconds: list[float]) -> Measured:
    rows = [(name, number, value) for name, values in seconds.items() for number, value in enumerate(values)]
    samples = (Sample(case="c", contender=n, round=r, seconds=v, check=1.0, failure="" if v else "x") for n, r, v in rows)
    return Measured(samples=tuple(samples))


def test_ratios_are_taken_within_a_round_and_skip_failed_runs() -> None:
    both = measured(a=[1.0, 2.0, 0.0], b=[2.0, 1.0, 5.0])
    assert both.ratios("c", "a", "b") == [0.5, 2.0]
    assert both.median("c", "b") == 2.0
    assert both.median("c", "absent") is None


def test_goals_say_reached_not_reached_and_not_measured() -> None:
    both = measured(a=[1.0, 1.0, 1.0], b=[2.0, 2.0, 3.0])
    assert times_as_fast("g", "c", "a", "b", 2.0)(both).reached is True
    assert times_as_fast("g", "c", "a", "b", 2.1)(both).reached is False
    assert at_most("g", "c", "b", 2000, unit="ms", factor=1e3)(both).reached is True
    assert fastest_group("g", "c", ("b",), ("a",))(both).reached is False
    assert fastest_group("g", "c", ("absent",), ("a",))(both).reached is None


def test_another_check_value_is_named() -> None:
    case = QUESTION.cases[0]
    samples = tuple(Sample(case=case, contender=n, round=0, seconds=1.0, check=c) for n, c in (("a", 5), ("b", 6), ("x", 7)))
    lines = disagreements(QUESTION, Measured(samples=samples), {(case, "a"), (case, "b")})
    assert len(lines) == 1 and lines[0].startswith(f"{case}, b: check 6")


def test_an_absent_peer_is_reported_and_not_run() -> None:
    contender = Contender(name="n", module="does_not_exist", needs=("no_such_library",))
    sample = run(contender, case="c", number=0, python=sys.executable)
    assert sample.failure == "not installed: no_such_library"
    assert math.isnan(sample.seconds)


def test_a_failing_peer_is_reported_without_paths() -> None:
    sample = run(Contender(name="n", module="does_not_exist"), case="c", number=0, python=sys.executable)
    assert sample.failure.startswith("exit 1: ")
    assert "/" not in sample.failure


SHARED = """
import subprocess, sys
from pathlib import Path
from benchmarks.peers.shares import shares
try:
    with shares(0.5) as found:
        print(Path("/proc/self/cgroup").read_text(), subprocess.run([found.command("far", "/bin/cat"), "/proc/self/cgroup"]))
except RuntimeError as error:
    sys.exit(f"cannot: {error}")
print("left:", Path("/proc/self/cgroup").read_text())
"""


def test_processes_get_shares_of_a_processor_and_leave_them() -> None:
    ended = subprocess.run([sys.executable, "-u", "-c", SHARED], capture_output=True, text=True, cwd=ROOT)
    if ended.stderr.startswith("cannot: "):
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stderr
    during, left = ended.stdout.split("left:")
    groups = re.findall(r"phalanx-\d+-\w+", during)
    assert {group.rpartition("-")[2] for group in groups} == {"near", "far"}
    assert "phalanx" not in left
    assert not list(Path("/sys/fs/cgroup").glob("*/phalanx-*")) and not list(Path("/sys/fs/cgroup").glob("phalanx-*"))
