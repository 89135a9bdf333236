"""Which directories are left over, and that nobody loses one that is in use."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from phalanx_worker.housing import SOCKET, Housing
from phalanx_worker.stray_directories import find, places, remove
from tests.freezing import freeze
from tests.worker.daemons import TOKEN

NAME = "phalanx-" + "0a" * 16
LATER = 3600.0


@pytest.fixture
def place() -> Iterator[Path]:
    """A place with a path that leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="strays-") as folder:
        yield Path(folder)


def directory(place: Path, name: str = NAME, *, dead: bool = True, mode: int = 0o700) -> Path:
    """One with the socket of somebody who was killed."""
    made = place / name
    made.mkdir()
    if dead:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(made / SOCKET))
            server.listen()
    made.chmod(mode)
    return made


def later(path: Path, seconds: float = LATER) -> float:
    return path.stat().st_mtime + seconds


def test_what_a_killed_worker_left_is_found_and_removed(place: Path) -> None:
    far, near, empty = (
        directory(place),
        directory(place, "phalanx-ab_12xyz"),
        directory(place, "phalanx-" + "f" * 32, dead=False),
    )
    assert find([place], later(far, 1)) == []
    assert find([place], later(empty, 120)) == sorted([far, near])
    found = find([place], later(empty))
    assert found == sorted([far, near, empty])
    assert remove(found) == found and os.listdir(place) == []


def test_what_is_in_use_or_not_ours_stays(place: Path) -> None:
    held, answered = directory(place), directory(place, "phalanx-" + "b" * 32, dead=False)
    directory(place, "phalanx-" + "c" * 32, mode=0o755)
    directory(place, "phalanx-mine")
    directory(place, "phalanx-abcdefgh", dead=False)
    (directory(place, "phalanx-" + "d" * 32) / "a file").touch()
    (place / ("phalanx-" + "e" * 32)).symlink_to(place)
    housing = Housing(held)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(answered / SOCKET))
        server.listen()
        assert find([place], later(answered)) == []
    assert remove([held]) == [] and held.exists()
    os.close(housing._held)
    assert find([place], later(answered)) == sorted([held, answered])


def test_places_are_those_of_workers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    assert places([str(place), "/var/tmp"])[0] == place.resolve()
    assert {Path("/tmp").resolve(), Path("/var/tmp").resolve()} <= set(places(["/var/tmp"]))
    assert find([place / "none"]) == []


def test_a_worker_and_its_supervisor_that_are_both_killed(place: Path) -> None:
    own = place / NAME
    command = [sys.executable, "-P", "-m", "phalanx_worker.supervisor", "--directory", str(own)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as supervisor:
        assert supervisor.stdin is not None and supervisor.stdout is not None
        supervisor.stdin.write(json.dumps({"token": TOKEN, "lease": 60}).encode() + b"\n")
        supervisor.stdin.flush()
        assert supervisor.stdout.readline() == b"\n"
        ready = json.loads(supervisor.stdout.readline())
        worker = psutil.Process(ready["pid"])
        family = [worker, *worker.children(recursive=True)]
        assert find([place], later(own)) == []
        freeze(worker.pid)  # or it would see its supervisor go, and clear up before its own turn comes
        supervisor.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, 30)
    assert remove(find([place], later(own))) == [own]
