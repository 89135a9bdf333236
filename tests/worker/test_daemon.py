"""The daemon as a process: how it starts, and the many ways in which it ends and leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2

from phalanx_proto import philox
from phalanx_proto.errors import EngineFailed, InvalidRequest
from phalanx_proto.v1 import worker_service_pb2 as messages
from phalanx_worker.housing import EXIT_LEASE, EXIT_OVERRUN, EXIT_SETUP
from tests.worker import builders, daemons
from tests.worker.builders import Problem
from tests.worker.daemons import PATIENCE, TOKEN, Daemon, assert_right, metadata, refused, update_requests

GREETING = json.dumps({"token": TOKEN, "lease": 60})


def start_in_vain(*arguments: str, greeting: str = GREETING) -> str:
    """Start a daemon that refuses; returns the reason in its ready line."""
    with subprocess.Popen(
        [sys.executable, "-m", "phalanx_worker", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(greeting.encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"\n"  # so that a profile which left a line open hides nothing
        answer = json.loads(process.stdout.readline())
        assert process.stdout.read() == b"" and process.wait(PATIENCE) == EXIT_SETUP
        assert answer["ready"] == 0 and answer["error"] in process.stderr.read().decode()
        return str(answer["error"])


def assert_gone(family: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(family, timeout=30)
    assert left == []


def assert_healthy(found: Daemon) -> None:
    answer = found.health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE, metadata=metadata())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a daemon makes its directory."""
    with tempfile.TemporaryDirectory(prefix="d-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.mark.parametrize(
    "greeting",
    ["", "hello", "[]", "{}", '{"token": "a token of sufficient length"}', '{"token": "t", "lease": {}}', "\x00\xff"],
)
def test_what_is_no_greeting_gets_a_next_step(greeting: str) -> None:
    reason = start_in_vain(greeting=greeting)
    assert "a worker is started by a coordinator" in reason and "use phalanx fit" in reason


@pytest.mark.parametrize(
    ("token", "lease"), [("short", 60), (TOKEN, 0), (TOKEN, 3601), (TOKEN, float("nan")), (TOKEN, float("inf"))]
)
def test_a_weak_token_or_a_strange_lease_is_refused(token: str, lease: float) -> None:
    reason = start_in_vain(greeting=json.dumps({"token": token, "lease": lease}))
    assert "at least 16 characters and the lease 1 to 3600 seconds" in reason


def test_slots_above_the_allocation_are_refused_not_clipped() -> None:
    reason = start_in_vain("--slots", "4097")
    assert "this worker: asked for 4097 slots, found" in reason and "ask for at most" in reason


@pytest.mark.parametrize("more", [[], ["--oversubscribe"]])
def test_no_slots_are_refused(more: list[str]) -> None:
    assert "asked for 0 slots; at least 1 is needed" in start_in_vain("--slots", "0", *more)


def test_a_directory_that_is_not_private_is_refused(private: Path) -> None:
    private.chmod(0o755)
    assert "with mode 0700" in start_in_vain("--directory", str(private))


def test_a_device_that_is_not_there_is_refused_and_nothing_stays(private: Path) -> None:
    assert "ordinal 5 was asked for" in start_in_vain("--ordinal", "5")
    assert list(private.iterdir()) == []


def test_it_ends_at_sigterm_and_leaves_nothing(private: Path) -> None:
    found = Daemon()
    family = found.family()
    assert len(family) == 2, "itself and its inspector"
    assert "another worker serves in this directory" in start_in_vain("--directory", str(found.socket.parent))
    assert found.socket.is_socket(), "the one in vain left it alone"
    os.kill(found.process.pid, signal.SIGINT)
    found.process.terminate()
    assert found.process.wait(PATIENCE) == 0
    assert "ended by SIGTERM" in found.words()
    assert list(private.iterdir()) == []
    assert_gone(family)
    found.end()


def test_it_ends_with_its_input_whatever_it_is_doing(private: Path) -> None:
    found = Daemon("--slots", "2", "--oversubscribe")
    family = found.family()
    assert len(family) == 3
    ranges = [(0, 1_000_000), (3, 50_001), (5, 6)]
    assert [answer.hits for answer in found.simulate(*ranges)] == [785_856, *(philox.hits(*r, 42) for r in ranges[1:])]
    request = messages.SimulateRequest(start=0, stop=1 << 40, seed=1)
    stream: Any = found.stub.Simulate(iter([request]), timeout=PATIENCE, metadata=metadata())
    before = family[0].cpu_times().user
    daemons.until(lambda: family[0].cpu_times().user > before + 0.2)
    assert found.process.stdin is not None
    found.process.stdin.close()
    assert found.process.wait(PATIENCE) == 0
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert list(private.iterdir()) == []
    assert_gone(family)
    found.end()


def test_it_ends_with_its_lease_though_nobody_reads_its_last_words(private: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    found = Daemon(lease=1.0, stderr=write)
    os.close(write)
    family = found.family()
    assert found.process.wait(PATIENCE) == EXIT_LEASE
    assert list(private.iterdir()) == []
    assert_gone(family)
    found.end()


def test_two_slots_work_as_one_until_one_is_lost(served: Problem, private: Path) -> None:
    found = Daemon("--slots", "2", "--oversubscribe", "--directory", str(private))
    found.open(served)
    for update, lo, hi in ((0, 0, 7), (0, 2, 5), (0, 6, 7), (1, 1, 6)):
        assert_right(found, served, update, lo, hi)
    with refused(InvalidRequest, "3 row ids came for 4 rows"):
        found.open(served, canary_rows=[0, 1, 2])
    found.open(served)
    assert_right(found, served, 0, 0, 7)

    family = found.family()
    engine = next(process for process in family if "phalanx_worker.engine_process" in process.cmdline())
    engine.kill()
    with refused(EngineFailed, "engine 2 ended while its leader waited for it"):
        found.train(update_requests(served, 0, 0, 7))
    assert_healthy(found)

    found.process.kill()
    assert found.process.wait(PATIENCE) == -signal.SIGKILL
    assert_gone(family)
    found.end()


def test_a_program_that_never_ends_ends_the_worker_with_a_reason(served: Problem, private: Path) -> None:
    """It passes inspection, for no inspection can tell; the deadline of a piece of work contains it."""
    found = Daemon("--deadline", "5")
    family = found.family()
    endless = builders.gradient_program(served, builders.endless_gradient)
    found.put(endless, served.x.tobytes(), served.y.tobytes(), served.initial.tobytes())
    opening: Any = found.stub.Open.future(daemons.open_request(served, endless), timeout=PATIENCE, metadata=metadata())
    daemons.until(lambda: family[0].cpu_times().user > 1.0)
    assert_healthy(found)
    assert found.process.wait(PATIENCE) == EXIT_OVERRUN
    assert "the engine overran its deadline of 5 s in 'open'" in found.words()
    assert opening.exception(timeout=PATIENCE).code() is grpc.StatusCode.UNAVAILABLE
    assert list(private.iterdir()) == []
    assert_gone(family)
    found.end()
