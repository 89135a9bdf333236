"""The supervisor of a daemon: what it passes on, and what it leaves, which is nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from phalanx_worker.supervisor import Lease, private_directory

RUN = """
import sys
from pathlib import Path
from phalanx_worker import supervisor
supervisor.GRACE = 0.3
directory = Path(sys.argv[1])
directory.mkdir()
sys.exit(supervisor.Supervisor([sys.executable, "-c", sys.argv[2]], directory).run())
"""
GREETING = b'{"token": "t", "lease": 60}\n'
Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a supervisor whose daemon is a script."""
    found: list[subprocess.Popen[bytes]] = []

    def begin(script: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", RUN, str(tmp_path / "own"), script]
        found.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return found[-1]

    yield begin
    for process in found:
        with process:  # closes its pipes
            process.kill()


def ended(process: "subprocess.Popen[bytes]") -> int:
    return process.wait(timeout=30)


def test_input_and_output_pass(start: Start, tmp_path: Path) -> None:
    process = start("import sys; print(sys.stdin.readline().strip()); print('said'); sys.exit(7)")
    output, _ = process.communicate(GREETING, timeout=30)
    assert output.split(b"\n", 1) == [GREETING.strip(), b"said\n"]
    assert process.returncode == 7 and not (tmp_path / "own").exists()


def test_a_signal_that_ends_the_daemon_is_told_as_shells_tell_it(start: Start, tmp_path: Path) -> None:
    process = start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert ended(process) == 128 + signal.SIGKILL
    assert not (tmp_path / "own").exists()


def test_the_daemon_may_end_by_itself_when_the_input_closes(start: Start) -> None:
    process = start("import sys; sys.stdin.read(); print('bye')")
    output, _ = process.communicate(GREETING, timeout=30)
    assert (output, process.returncode) == (b"bye\n", 0)


@pytest.mark.parametrize(
    "stubborn",
    ["import time; time.sleep(60)", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"],
    ids=["deaf", "stopped"],
)
def test_one_that_does_not_end_is_killed_with_its_children(start: Start, tmp_path: Path, stubborn: str) -> None:
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    process = start(child + stubborn)
    deadline = time.monotonic() + 20
    while len(family := psutil.Process(process.pid).children(recursive=True)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.stdin is not None
    process.stdin.close()
    assert ended(process) == 128 + signal.SIGKILL
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert len(gone) == 2 and not alive and not (tmp_path / "own").exists()


def test_a_lease_that_nobody_renews_ends_a_daemon_that_cannot_see_it(start: Start) -> None:
    process = start("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    assert process.stdin is not None
    process.stdin.write(b'{"token": "t", "lease": 0.5}\n')
    process.stdin.flush()
    assert ended(process) == 128 + signal.SIGKILL


def test_the_greeting_may_come_in_pieces() -> None:
    lease = Lease()
    for piece in (b'{"token": "t"', b', "lease": 7}', b"\n\n"):
        lease.read(piece)
    assert lease.seconds == 7.0
    lease.read(b'{"lease": 9}\n')
    assert lease.seconds == 7.0


def test_nonsense_is_no_lease() -> None:
    lease = Lease()
    before = lease.seconds
    lease.read(b"GET / HTTP/1.1\r\n")
    assert lease.seconds == before


def test_the_directory_is_new_and_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "new"
    assert private_directory(["--slots", "1", "--directory", str(path)]) == path
    assert path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        private_directory(["--directory", str(path)])
    assert private_directory(["--slots", "1"]) is None


def test_a_directory_that_cannot_be_made_is_told_in_the_ready_line(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "phalanx_worker.supervisor", "--directory", str(tmp_path)]
    done = subprocess.run(command, input=GREETING, capture_output=True, timeout=60, check=False)
    assert done.returncode == 72
    told = json.loads(done.stdout)
    assert told["ready"] == 0 and "no private directory can be made on its machine: File exists" in told["error"]
    assert str(tmp_path) not in told["error"] and str(tmp_path) in done.stderr.decode()
    assert os.listdir(tmp_path) == []
