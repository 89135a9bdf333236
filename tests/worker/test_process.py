"""One real engine process: its start, its operations, its end."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import jax
import psutil
import pytest

from phalanx_proto.endings import describe_exit
from phalanx_proto.errors import CorruptData, EngineFailed, InvalidRequest, OutOfTime, Unavailable
from phalanx_proto.philox import hits
from phalanx_worker import lowering
from phalanx_worker.arena import Arena
from phalanx_worker.process import EngineProcess, SlotSpec
from tests.worker import builders

START = 120.0
OWNER = """
    import asyncio, sys
    from phalanx_worker.process import EngineProcess, SlotSpec

    async def main():
        engine = EngineProcess("1", SlotSpec())
        await engine.start(120.0)
        print(engine.pid, flush=True)
        await engine.call({"op": "simulate", "start": 0, "stop": 1 << 40, "seed": 1}, deadline=600.0)

    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def shared(runner: asyncio.Runner) -> Iterator[EngineProcess]:
    found = EngineProcess("1", SlotSpec())
    runner.run(found.start(START))
    yield found
    runner.run(found.close())


def call(runner: asyncio.Runner, own: EngineProcess, body: dict[str, Any], *arguments: Any, deadline: float = 60.0) -> Any:
    return runner.run(own.call(body, *arguments, deadline=deadline))


def test_the_ready_report_names_process_and_device(shared: EngineProcess) -> None:
    assert shared.ready["pid"] == shared.pid and shared.alive
    assert shared.ready["device"]["platform"] == "cpu" and shared.ready["jax"] == jax.__version__
    assert shared.ready["resident"] > 1 << 20


def test_an_engine_runs_in_its_own_session_and_environment(shared: EngineProcess) -> None:
    process = psutil.Process(shared.pid)
    assert os.getsid(process.pid) == process.pid
    environment = process.environ()
    assert environment["NPROC"] == "1" and environment["JAX_PLATFORMS"] == "cpu"


def test_an_operation_is_answered(runner: asyncio.Runner, shared: EngineProcess) -> None:
    answer = call(runner, shared, {"op": "simulate", "start": 3, "stop": 100_000, "seed": 42})
    assert answer.body["hits"] == hits(3, 100_000, 42) and answer.body["compute"] > 0


@pytest.mark.parametrize("samples", [1, 1 << 26])
def test_an_answer_that_is_looked_for_may_come_at_once_or_late(
    runner: asyncio.Runner, shared: EngineProcess, samples: int
) -> None:
    async def asked() -> list[int]:
        for _ in range(2):
            await shared.send({"op": "simulate", "start": 0, "stop": samples, "seed": 42})
        return [(await shared.receive(60.0, "'simulate'", soon=True)).body["hits"] for _ in range(2)]

    assert runner.run(asked()) == [hits(0, samples, 42)] * 2


def test_an_interrupt_is_the_owners_business(runner: asyncio.Runner, shared: EngineProcess) -> None:
    os.kill(shared.ready["pid"], signal.SIGINT)
    assert call(runner, shared, {"op": "describe"}).body["pid"] == shared.pid


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ({"op": "fly"}, InvalidRequest, "an engine has no operation 'fly'"),
        ({"op": "stretch", "until": 1, "seconds": 1}, InvalidRequest, "no canonical fit is open"),
        ({"op": "serve"}, InvalidRequest, "follows nobody"),
        ({"op": "simulate", "start": 0}, EngineFailed, "KeyError: 'stop'"),
        ({"op": "lower", "spec": "{}"}, EngineFailed, "KeyError"),
    ],
)
def test_an_error_crosses_as_itself_and_the_engine_lives_on(
    runner: asyncio.Runner, shared: EngineProcess, body: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call(runner, shared, body)
    assert call(runner, shared, {"op": "describe"}).body["pid"] == shared.pid


def test_lowering_in_an_engine_gives_the_same_programs(runner: asyncio.Runner, shared: EngineProcess) -> None:
    spec = builders.make_spec()
    answer = call(runner, shared, {"op": "lower", "spec": spec.to_json()})
    assert answer.body["digests"] == {name: found.digest for name, found in lowering.lower(spec).items()}
    assert [length for _, length in answer.body["index"]] and answer.body["state"] == [spec.model.parameters] * 2
    assert sum(length for _, length in answer.body["index"]) == len(answer.payload)


def test_arrays_travel_in_shared_memory(runner: asyncio.Runner, shared: EngineProcess) -> None:
    problem = builders.make_problem()
    artifact = builders.artifacts_of(problem.spec)["predict"]
    arena = Arena.create({
        "parameters": (problem.initial.shape, "float64"), "x": (problem.x.shape, "float64"), "out": ((50, 3), "float64"),
    })  # fmt: skip
    arena["parameters"][:], arena["x"][:] = problem.initial, problem.x
    body = {
        "op": "predict", "sizes": problem.sizes.to_document(), "index": [("predict", len(artifact))], "arena": arena.describe(),
    }  # fmt: skip
    call(runner, shared, body, artifact, [arena.descriptor])
    assert arena["out"].tobytes() == builders.bound_engine(problem).predict(problem.initial, problem.x).tobytes()
    arena.close()


def test_the_last_lines_are_kept_and_bounded(runner: asyncio.Runner, shared: EngineProcess) -> None:
    for _ in range(3):
        with pytest.raises(EngineFailed):
            call(runner, shared, {"op": "simulate", "start": 0})
    assert 0 < len(shared.lines) <= 20
    assert any("KeyError" in line for line in shared.lines)


def test_a_backend_that_is_not_there_is_named_and_nothing_stays(runner: asyncio.Runner) -> None:
    own = EngineProcess("1", SlotSpec(backend="cpu", ordinal=7))
    with pytest.raises(Unavailable, match="ordinal 7 was asked for"):
        runner.run(own.start(START))
    runner.run(own.close())
    assert own.pid is None and not own.alive


def test_a_start_has_a_deadline(runner: asyncio.Runner) -> None:
    own = EngineProcess("late", SlotSpec())
    with pytest.raises(OutOfTime, match=r"engine late did not finish its self-tests within 0\.01 s"):
        runner.run(own.start(0.01))
    runner.run(own.close())
    with pytest.raises(EngineFailed, match="engine late is closed"):
        runner.run(own.call({"op": "describe"}, deadline=1.0))


@pytest.mark.parametrize("soon", [False, True])
def test_a_killed_engine_fails_its_operation_and_says_how_it_ended(runner: asyncio.Runner, soon: bool) -> None:
    async def killed() -> None:
        own = EngineProcess("7", SlotSpec())
        await own.start(START)
        with pytest.raises(OutOfTime, match=r"engine 7 did not finish 'simulate' within 0\.05 s"):
            await own.call({"op": "simulate", "start": 0, "stop": 1 << 40, "seed": 1}, deadline=0.05)
        waiting = asyncio.create_task(own.receive(600.0, "'simulate'", soon=soon))
        await asyncio.sleep(0)
        os.kill(own.ready["pid"], signal.SIGKILL)
        with pytest.raises(EngineFailed, match="engine 7 was ended by SIGKILL"):
            await asyncio.wait_for(waiting, 30)
        assert not own.alive
        with pytest.raises(EngineFailed, match="engine 7 was ended by SIGKILL"):
            await own.call({"op": "describe"}, deadline=5.0)
        await own.close()

    runner.run(killed())


def test_an_engine_at_work_ends_when_its_owner_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        orphan = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
        owner.wait(30)
    _, left = psutil.wait_procs([orphan], timeout=30)
    assert left == []


def test_a_peer_that_speaks_nonsense_is_no_engine(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import socket, sys; socket.socket(fileno=int(sys.argv[3])).sendall(b'GET / HTTP/1.1')"
    with_nonsense = os.path.join(os.environ["TMPDIR"], "python")
    with open(with_nonsense, "w") as file:
        file.write(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
    os.chmod(with_nonsense, 0o700)
    own = EngineProcess("1", SlotSpec())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", with_nonsense)
        with pytest.raises(CorruptData, match="the peer is not an engine"):
            runner.run(own.start(START))
    runner.run(own.close())
    os.unlink(with_nonsense)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "is not answering"),
        (0, "ended with exit status 0"),
        (70, "ended with exit status 70"),
        (-signal.SIGSEGV, "was ended by SIGSEGV"),
    ],
)
def test_an_exit_in_words(status: int | None, words: str) -> None:
    assert describe_exit(status) == words
    assert "lack of memory" in describe_exit(-signal.SIGKILL)
