"""Daemons that do not behave: each fault names the worker, keeps its last words and leaves nothing.

The daemons here are small scripts. That nothing is left is shown by the guard of every test, in ``tests/conftest.py``.
"""

import asyncio
import dataclasses
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members import launch
from phalanx_coordinator.members.launch import WorkerProcess
from phalanx_coordinator.members.timing import Deadlines
from phalanx_coordinator.ssh import config as ssh_config
from phalanx_coordinator.ssh import private_directory
from phalanx_coordinator.ssh.transport import Launch, Route
from phalanx_proto.errors import PhalanxError, Unavailable, WorkerLost

Result = TypeVar("Result")
SHORT = Deadlines(rpc=0.2, heartbeat=0.6, update=0.7, lease=0.8, start=15.0)
RECORD = WorkerRecord(name="atlas-01", transport="socket")
TOKEN = "t" * 32
PRELUDE = "import json, os, signal, subprocess, sys, time\ngreeting = sys.stdin.readline()\n"
READY = 'print(json.dumps({"ready": 1, "socket": "/somewhere/worker.sock"}), flush=True)\n'
BEAT_UNTIL_EOF = """
import threading
def beat():
    while True:
        print(json.dumps({"beat": 1}), flush=True)
        time.sleep(0.1)
threading.Thread(target=beat, daemon=True).start()
sys.stdin.read()
"""
SLEEP = "time.sleep(60)\n"


def start_with(monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    """Every daemon is this command."""
    socket = Path("/somewhere/worker.sock")
    monkeypatch.setattr(
        launch, "plan_launch", lambda record, route, *ignored: Launch(route=route, command=command, socket=socket)
    )


@pytest.fixture
def behave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes daemons that do what a script says after they read their greeting; they are given little time to end."""
    monkeypatch.setattr(launch, "GRACE", 0.3)

    def write(script: str) -> None:
        path = tmp_path / "daemon.py"
        path.write_text(PRELUDE + script)
        start_with(monkeypatch, sys.executable, str(path))

    return write


def with_worker(
    work: Callable[[WorkerProcess], Awaitable[Result]], deadlines: Deadlines = SHORT, log: launch.LogSink | None = None
) -> Result:
    """Start a worker, let ``work`` look at it, and close it whatever happens."""

    async def story() -> Result:
        process = WorkerProcess(RECORD, TOKEN, deadlines, log or (lambda worker, line: None))
        try:
            async with asyncio.timeout(30):
                await process.start(False)
                return await work(process)
        finally:
            await process.close()

    return asyncio.run(story())


async def nothing(process: WorkerProcess) -> None:
    """Only starts."""


async def until_lost(process: WorkerProcess) -> WorkerLost:
    return await process.lost


def refusal(kind: type[PhalanxError], deadlines: Deadlines = SHORT) -> str:
    with pytest.raises(kind) as caught:
        with_worker(nothing, deadlines)
    assert "worker atlas-01" in caught.value.message
    return str(caught.value)


def test_a_worker_that_is_ready(behave: Callable[[str], None], tmp_path: Path) -> None:
    behave(f"open({str(tmp_path / 'greeting')!r}, 'w').write(greeting)\n" + READY + BEAT_UNTIL_EOF)

    async def look(process: WorkerProcess) -> tuple[str, bool, bool]:
        assert process.pid is not None
        return process.socket, psutil.pid_exists(process.pid), process.lost.done()

    assert with_worker(look) == ("/somewhere/worker.sock", True, False)
    assert json.loads((tmp_path / "greeting").read_text()) == {"token": TOKEN, "lease": SHORT.lease}


def test_the_token_is_in_no_command_line(behave: Callable[[str], None]) -> None:
    behave(READY + BEAT_UNTIL_EOF)

    async def look(process: WorkerProcess) -> list[str]:
        return psutil.Process(process.pid).cmdline() + list(psutil.Process(process.pid).environ().values())

    assert not any(TOKEN in text for text in with_worker(look))


def test_the_lease_is_renewed_in_time(behave: Callable[[str], None]) -> None:
    behave(READY + "for line in sys.stdin: print('renewed', repr(line), file=sys.stderr, flush=True)\n")
    heard: list[str] = []
    enough = asyncio.Event()

    def listen(worker: str, line: str) -> None:
        heard.append(f"{worker}: {line}")
        if len(heard) == 2:
            enough.set()

    async def two(process: WorkerProcess) -> None:
        await enough.wait()

    with_worker(two, log=listen)
    assert heard[:2] == ["atlas-01: renewed '\\n'"] * 2


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("print('Welcome to atlas-01', flush=True)", "Welcome to atlas-01"),
        ("sys.stdout.buffer.write(bytes(range(256)) + b'\\n'); sys.stdout.flush()", "     "),
        ("print('\\x1b[2Jcleared', flush=True)", " [2Jcleared"),
        ("print('[1, 2]', flush=True)", "[1, 2]"),
        ("print('{}', flush=True)", "{}"),
        ("print('{\"ready\": 1}', flush=True)", '{"ready": 1}'),
        ("print('x' * 200_000, flush=True)", "..."),
        ("print(greeting, flush=True)", '{"token": "(token)", "lease": 0.8}'),
    ],
)
def test_other_lines_are_told_where_no_ready_line_comes(behave: Callable[[str], None], line: str, shown: str) -> None:
    behave(f"{line}\nsys.exit(0)\n")
    message = refusal(WorkerLost)
    assert f"(standard output) {shown}" in message
    assert len(message) < 1000 and TOKEN not in message


def test_a_ready_line_is_found_among_noise(behave: Callable[[str], None]) -> None:
    behave("print('Welcome!\\n\\n  * news', flush=True)\n" + READY + BEAT_UNTIL_EOF)
    with_worker(nothing)


@pytest.mark.parametrize(
    "noise",
    [
        "sys.stdout.write('\\033]0;gamma\\007')\n",  # a title, and no newline
        "sys.stdout.write('{\"ready\": ')\n",
        "for n in range(5000): print(n)\n",
        "sys.stdout.write('x' * (4 << 20) + '\\n')\n",
        "sys.stdout.write('x' * (4 << 20))\n",
    ],
)
def test_a_ready_line_is_found_behind_any_profile(behave: Callable[[str], None], noise: str) -> None:
    behave(noise + READY + BEAT_UNTIL_EOF)
    with_worker(nothing)


def test_noise_has_an_end(behave: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    behave("while True: print('y' * 4000, flush=True)\n")
    assert "said 8 MiB of other things instead of its ready line; is it a Phalanx worker?" in refusal(WorkerLost)
    monkeypatch.setattr(sys.modules[__name__], "RECORD", WorkerRecord(name="atlas-01", transport="ssh", host="atlas"))
    monkeypatch.setattr(ssh_config, "destination", never_asked)
    message = refusal(Unavailable)
    assert message.startswith("worker atlas-01 cannot be heard: the shell profile on that machine prints too much (8 MiB")
    assert "\n    ssh atlas true | head -c 2000\nnoticed at " in message


async def never_asked(record: WorkerRecord) -> None:
    """No configuration of ssh is looked at."""


def test_beats_without_a_ready_line_are_no_noise(behave: Callable[[str], None]) -> None:
    behave(BEAT_UNTIL_EOF)
    message = refusal(WorkerLost, dataclasses.replace(SHORT, start=1.0))
    assert "was not ready within 1 s\n" in message and "standard output" not in message


def test_another_program_has_a_deadline(behave: Callable[[str], None]) -> None:
    behave("print('>>> ', flush=True)\n" + SLEEP)
    message = refusal(WorkerLost, dataclasses.replace(SHORT, start=1.0))
    assert "was not ready within 1 s, but said something else; is it a Phalanx worker?" in message


def test_a_worker_that_says_nothing_has_a_deadline(behave: Callable[[str], None]) -> None:
    behave("print('still at it', file=sys.stderr, flush=True)\n" + SLEEP)
    message = refusal(WorkerLost, Deadlines(rpc=0.2, heartbeat=0.6, update=0.7, lease=0.8, start=1.0))
    assert "worker atlas-01 was not ready within 1 s\nnoticed at " in message
    assert message.endswith(" UTC\nthe last words of atlas-01:\n    still at it")


def test_a_worker_that_ends_at_once_tells_its_status_and_last_words(behave: Callable[[str], None]) -> None:
    behave("print('no jax here\\ninstall phalanx[worker]', file=sys.stderr)\nsys.exit(3)\n")
    message = refusal(WorkerLost)
    assert message.startswith("worker atlas-01 ended with exit status 3\n")
    assert message.endswith("\nthe last words of atlas-01:\n    no jax here\n    install phalanx[worker]")


def test_a_worker_that_cannot_be_ready_says_why(behave: Callable[[str], None]) -> None:
    behave('print(json.dumps({"ready": 0, "error": "asked for 9 slots, found 2"}), flush=True)\nsys.exit(72)\n')
    assert refusal(Unavailable).startswith("worker atlas-01 cannot be ready: asked for 9 slots, found 2\n")
    behave('print(json.dumps({"ready": 0}), flush=True)\nsys.exit(72)\n')
    assert "worker atlas-01 cannot be ready: it did not say why it is not ready" in refusal(Unavailable)


def test_an_executable_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    start_with(monkeypatch, "/no/such/python")
    assert refusal(Unavailable) == "worker atlas-01: /no/such/python cannot be started: No such file or directory"


def test_a_crash_is_noticed_at_once_with_its_signal(behave: Callable[[str], None]) -> None:
    behave(READY + "print('about to go', file=sys.stderr, flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    lost = with_worker(until_lost)
    assert lost.message == "worker atlas-01 was ended by SIGSEGV"
    assert re.fullmatch(
        r"noticed at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, \d+\.\d s after it was ready\n"
        r"the last words of atlas-01:\n    about to go", lost.private,
    )  # fmt: skip
    assert lost.details == {"worker": "atlas-01", "failure": "ended"}


def test_a_kill_hints_at_memory(behave: Callable[[str], None]) -> None:
    behave(READY + BEAT_UNTIL_EOF)

    async def kill(process: WorkerProcess) -> WorkerLost:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        return await process.lost

    assert "was ended by SIGKILL; the kernel may have ended it for lack of memory" in with_worker(kill).message


def test_a_worker_that_goes_quietly_later_is_lost_as_well(behave: Callable[[str], None]) -> None:
    behave(READY + "sys.exit(0)\n")
    assert with_worker(until_lost).message == "worker atlas-01 ended with exit status 0"


def test_a_worker_that_stops_beating_is_lost(behave: Callable[[str], None]) -> None:
    behave(READY + "print('beat', flush=True)\n" + SLEEP)
    assert "worker atlas-01 gave no sign of life for 1 s; it is stopped, or out of reach" in with_worker(until_lost).message


def test_a_stopped_worker_is_lost(behave: Callable[[str], None]) -> None:
    behave(READY + BEAT_UNTIL_EOF)

    async def stop(process: WorkerProcess) -> WorkerLost:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        return await process.lost

    assert "gave no sign of life" in with_worker(stop).message


def test_a_worker_that_beats_is_kept(behave: Callable[[str], None]) -> None:
    behave(READY + BEAT_UNTIL_EOF)

    async def three_silences(process: WorkerProcess) -> bool:
        done, _ = await asyncio.wait({process.lost}, timeout=3 * SHORT.heartbeat)
        return bool(done)

    assert not with_worker(three_silences)


def test_the_log_is_passed_on_by_name_and_the_last_lines_are_kept(behave: Callable[[str], None]) -> None:
    behave(READY + "for n in range(50): print('line', n, file=sys.stderr)\nsys.exit(1)\n")
    heard: list[tuple[str, str]] = []
    lost = with_worker(until_lost, log=lambda worker, line: heard.append((worker, line)))
    assert heard == [("atlas-01", f"line {n}") for n in range(50)]
    kept = lost.private.splitlines()[2:]
    assert kept == [f"    line {n}" for n in range(50 - launch.LAST_LINES, 50)]


def test_a_flood_on_standard_error_neither_blocks_nor_grows(behave: Callable[[str], None]) -> None:
    flood = "sys.stderr.write('x' * 500_000 + '\\n')\nsys.stderr.write('the end\\n')\nsys.stderr.flush()\n"
    behave(flood + READY + "sys.exit(1)\n")
    message = with_worker(until_lost).private
    assert "the end" in message
    assert len(message) < 10 * launch.LINE_LIMIT


def test_a_line_too_long_on_standard_output_is_only_a_beat(behave: Callable[[str], None]) -> None:
    behave(READY + "print('y' * 300_000, flush=True)\nsys.exit(4)\n")
    assert "ended with exit status 4" in with_worker(until_lost).message


def test_one_that_does_not_go_is_ended_by_force_with_its_children(behave: Callable[[str], None]) -> None:
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    behave("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + child + READY + SLEEP)

    async def family(process: WorkerProcess) -> list[psutil.Process]:
        leader = psutil.Process(process.pid)
        return [leader, *leader.children()]

    found = with_worker(family)
    assert len(found) == 2
    gone, alive = psutil.wait_procs(found, timeout=10)
    assert len(gone) == 2 and alive == []


def test_a_start_that_is_cancelled_leaves_nothing(behave: Callable[[str], None]) -> None:
    behave(SLEEP)

    async def story() -> None:
        process = WorkerProcess(RECORD, TOKEN, SHORT, lambda worker, line: None)
        starting = asyncio.create_task(process.start(False))
        async with asyncio.timeout(20):
            while process.pid is None:
                await asyncio.sleep(0.01)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await process.close()

    asyncio.run(story())


def test_the_private_directory_is_the_owners_alone_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def command(record: WorkerRecord, route: Route, directory: Path, *ignored: object) -> Launch:
        seen.append(directory)
        assert directory.stat().st_mode & 0o777 == 0o700
        return Launch(route=route, command=("/no/such/python",), socket=directory / "worker.sock")

    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        monkeypatch.setattr(launch, "plan_launch", command)
        refusal(Unavailable)
        assert seen[0].parent == Path(short)
        assert not seen[0].exists()


@pytest.mark.parametrize("place", ["/tmp/" + "a" * 90, "/tmp/with space", "/tmp/100%", "/tmp/a:b"])
def test_a_place_where_no_socket_fits_is_passed_over(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", place)
    found = private_directory.make("atlas-01")
    found.rmdir()
    assert found.parent == Path(tempfile.gettempdir())


def test_what_a_killed_coordinator_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    names = {name: tmp_path / f"phalanx-{name}" for name in ("abandone", "heldbyus", "withdata", "justmade")}
    for directory in names.values():
        directory.mkdir(mode=0o700)
        (directory / "worker.sock").touch()
    (names["withdata"] / "notes").touch()
    (tmp_path / "phalanx-long-name").mkdir()
    for directory in set(names.values()) - {names["justmade"]}:
        os.utime(directory, (0, 0))
    held = private_directory.hold(names["heldbyus"])
    private_directory.sweep(tmp_path)
    assert {name for name, directory in names.items() if directory.exists()} == {"heldbyus", "withdata", "justmade"}
    assert (names["heldbyus"] / "worker.sock").exists() and (tmp_path / "phalanx-long-name").exists()
    os.close(held)
    private_directory.sweep(tmp_path)
    assert not names["heldbyus"].exists()


def test_a_runtime_directory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/missing")
    assert "no directory can be made for its socket: No such file or directory" in refusal(Unavailable)


def test_a_coordinator_that_stood_still_blames_nobody(behave: Callable[[str], None]) -> None:
    behave(READY + BEAT_UNTIL_EOF)

    async def look(process: WorkerProcess) -> bool:
        time.sleep(2 * SHORT.heartbeat)  # the whole loop stands still, as under a slow listener or Ctrl-Z
        await asyncio.sleep(SHORT.heartbeat / 2)
        return process.lost.done()

    assert not with_worker(look, dataclasses.replace(SHORT, update=20.0, lease=60.0))
