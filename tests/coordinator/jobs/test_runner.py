"""What a runner does around its job."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phalanx_coordinator.jobs import runner as job_runner


def test_a_mac_is_kept_awake_as_long_as_the_runner_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **how: started.append(command))
    monkeypatch.setattr(sys, "platform", "linux")
    job_runner.keep_awake()
    assert started == []
    monkeypatch.setattr(sys, "platform", "darwin")
    job_runner.keep_awake()
    assert started == [["caffeinate", "-i", "-w", str(os.getpid())]]


def test_a_mac_without_the_command_computes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*command: Any, **how: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "Popen", missing)
    monkeypatch.setattr(sys, "platform", "darwin")
    job_runner.keep_awake()


def test_what_is_no_job_ends_the_runner_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert job_runner.run(tmp_path, None) == 2
    assert "is not a job directory" in capsys.readouterr().err
