"""``phalanx cluster``: what is read, printed and written, and the exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from phalanx.cli import app

TEXT = "ANER_CLUSTER 2\nprecision Float32\nlaptop local - - 2 cpu\natlas ssh me@secret /opt/p/bin/python 1 cuda 2\n"


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
