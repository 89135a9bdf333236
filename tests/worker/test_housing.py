import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx_proto.errors import InvalidRequest
from phalanx_worker import housing
from phalanx_worker.housing import EXIT_LEASE, LONGEST_PATH, Housing, keep_lease


class Leaving:
    """Stands for ``Housing.leave``."""

    def __init__(self) -> None:
        self.left: list[tuple[int, str]] = []

    def __call__(self, status: int, reason: str) -> None:
        self.left.append((status, reason))


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def private() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="h-") as folder:
        yield Path(folder)


def release(found: Housing) -> None:
    os.close(found._held)


def test_a_new_private_directory_is_made(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private))
    found = Housing(None)
    assert found.directory.parent == private and found.socket.parent == found.directory
    assert stat.S_IMODE(found.directory.stat().st_mode) == 0o700
    assert os.umask(0o077) == 0o077, "whatever is made from now on is this user's alone"
    release(found)


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o777])
def test_a_directory_that_others_can_enter_is_refused(private: Path, mode: int) -> None:
    private.chmod(mode)
    with pytest.raises(InvalidRequest, match="with mode 0700"):
        Housing(private)
    private.chmod(0o700)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_another_users_directory_is_refused(private: Path) -> None:
    os.chown(private, 65534, 65534)
    with pytest.raises(InvalidRequest, match="this user's own"):
        Housing(private)


def test_a_missing_directory_is_refused(private: Path) -> None:
    with pytest.raises(InvalidRequest, match="is not there; make it with mode 0700"):
        Housing(private / "nowhere")


def test_a_directory_has_one_worker(private: Path) -> None:
    first = Housing(private)
    with pytest.raises(InvalidRequest, match="another worker serves in this directory"):
        Housing(private)
    release(first)
    release(Housing(private))


def leave_in_a_child(directory: Path) -> None:
    """``leave`` ends its process."""
    script = f"from pathlib import Path; from phalanx_worker.housing import Housing; Housing(Path({str(directory)!r})).leave(0)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_given_directory_goes_too_when_its_owner_may_be_gone(private: Path) -> None:
    given = private / "given"
    given.mkdir(mode=0o700)
    leave_in_a_child(given)
    assert not given.exists()


def test_a_given_directory_with_something_else_in_it_stays(private: Path) -> None:
    (private / "a file").touch()
    leave_in_a_child(private)
    assert (private / "a file").exists()


def test_a_path_too_long_for_a_socket_is_refused_and_nothing_stays(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = private / ("d" * (LONGEST_PATH - len(str(private))))
    deep.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(InvalidRequest, match="set XDG_RUNTIME_DIR to a short one"):
        Housing(None)
    assert list(deep.iterdir()) == []


def test_the_lease_ends_with_its_input() -> None:
    read, write = os.pipe()
    os.write(write, b"\n\n")
    os.close(write)
    leaving = Leaving()
    keep_lease(60.0, leaving, read)
    os.close(read)
    assert leaving.left == [(0, "")]


def test_the_lease_runs_out() -> None:
    read, write = os.pipe()
    leaving = Leaving()
    keep_lease(0.01, leaving, read)
    assert leaving.left[0][0] == EXIT_LEASE and "the lease of 0 s ran out" in leaving.left[0][1]
    os.close(read)
    os.close(write)


def test_a_line_renews_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three waits that each bring a line within the lease, then one that does not: time is what ``select`` says."""
    read, write = os.pipe()
    waits: list[float] = []

    def select(readers: Any, writers: Any, errors: Any, seconds: float) -> tuple[list[int], list[int], list[int]]:
        waits.append(seconds)
        if len(waits) > 3:
            return [], [], []
        os.write(write, b"\n")
        return [read], [], []

    monkeypatch.setattr("phalanx_worker.housing.select.select", select)
    leaving = Leaving()
    keep_lease(7.0, leaving, read)
    assert waits == [7.0] * 4 and [status for status, _ in leaving.left] == [EXIT_LEASE]
    os.close(read)
    os.close(write)


def test_a_beat_that_nobody_reads_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    leaving = Leaving()
    monkeypatch.setattr(housing, "BEAT", 0.001)
    with os.fdopen(write, "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        thread = threading.Thread(target=housing.beat, args=(leaving,))
        thread.start()
        thread.join(30)
        monkeypatch.undo()
        assert not thread.is_alive() and leaving.left == [(0, "")]
        os.dup2(os.open(os.devnull, os.O_WRONLY), broken.fileno())
