"""The job that ``--job`` names, by its directory or by its name."""

from pathlib import Path

import pytest

from phalanx_proto import job_registry
from tests.client.test_cli import make_job, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        job_registry.remember(make_job(tmp_path / name, "night"))
    return tmp_path


def test_a_job_is_found_by_its_directory_and_by_its_name(folder: Path) -> None:
    job_registry.remember(make_job(folder / "there", "day"))
    for named in ("there/day", "day"):
        assert run("status", "--job", named).stdout.startswith("job         day (fit)"), named
    for command in ("cancel", "logs"):
        assert run(command, "--job", "day").exit_code == 0, command


def test_a_name_that_several_jobs_have_lists_them(folder: Path) -> None:
    found = run("resume", "--job", "night")
    assert found.exit_code == 2
    assert found.stderr == (
        "error: 2 jobs have the name night; say which one:\n    --job here/night\n    --job there/night\n"
    )  # fmt: skip
    make_job(folder, "night")
    assert run("status", "--job", "night").exit_code == 0


def test_a_name_that_no_job_has_is_told_as_a_directory(folder: Path) -> None:
    assert "the job directory" in run("status", "--job", "dawn").stderr
    assert "the job directory" in run("status", "--job", "elsewhere/night").stderr


@pytest.mark.parametrize("words", [("here/night",), ("here/night", "--watch"), ("--watch", "here/night")])
def test_a_directory_without_the_option_is_understood(folder: Path, words: tuple[str, ...]) -> None:
    found = run("status", *words)
    assert (found.exit_code, found.stderr) == (2, "error: no option --job; did you mean --job here/night?\n")
    assert "Missing option" in run("status").stderr
