import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from phalanx_proto.artifacts import Artifact, Limits
from phalanx_proto.errors import EngineFailed, OutOfTime, ProgramRefused
from phalanx_proto.experiment import Dense, ModelSpec, OptimizerSpec, ProgramSpec
from phalanx_proto.handshake import NOT_RUN, PASSED
from phalanx_worker import lowering
from phalanx_worker.inspection import Inspector
from tests.freezing import freeze

PATIENCE = 120.0
SPEC = ProgramSpec(
    model=ModelSpec(layers=(Dense(inputs=3, outputs=4), "tanh", Dense(inputs=4, outputs=2))),
    loss="cross_entropy",
    float_targets=False,
    optimizer=OptimizerSpec(name="sgd"),
    dtype="float32",
    block=4,
    score_block=4,
)
SIGNATURES = lowering.signatures(SPEC)


@pytest.fixture(scope="module")
def artifacts() -> dict[str, Artifact]:
    return lowering.lower(SPEC)


@pytest.fixture
def inspector() -> Iterator[Inspector]:
    inspector = Inspector()
    yield inspector
    inspector.close()


def pid_of(inspector: Inspector) -> int:
    inspector.start()
    assert inspector.pid is not None
    return inspector.pid


def test_good_programs_pass_one_after_another(inspector: Inspector, artifacts: dict[str, Artifact]) -> None:
    assert inspector.self_test(PATIENCE) == PASSED
    first = pid_of(inspector)
    for _ in range(2):
        found = inspector.inspect(list(artifacts.values()), [SIGNATURES[name] for name in artifacts], PATIENCE)
        assert [one.digest for one in found] == [artifact.digest for artifact in artifacts.values()]
        assert [one.signature for one in found] == [SIGNATURES[name] for name in artifacts]
    assert pid_of(inspector) == first


def test_a_refusal_names_the_program_and_costs_the_inspector(inspector: Inspector, artifacts: dict[str, Artifact]) -> None:
    first = pid_of(inspector)
    with pytest.raises(ProgramRefused, match=r"'score': its signature is .* wanted"):
        inspector.inspect([artifacts["gradient"], artifacts["score"]], [None, SIGNATURES["gradient"]], PATIENCE)
    assert not psutil.pid_exists(first)
    assert inspector.inspect([artifacts["score"]], [SIGNATURES["score"]], PATIENCE)
    assert pid_of(inspector) != first


def test_a_false_digest_is_refused(inspector: Inspector, artifacts: dict[str, Artifact]) -> None:
    forged = replace(artifacts["update"], digest="0" * 64)
    with pytest.raises(ProgramRefused, match=r"'update': its digest is [0-9a-f]{64}, wanted 0000"):
        inspector.inspect([forged], [None], PATIENCE)
    anonymous = replace(artifacts["update"], digest="")
    assert inspector.inspect([anonymous], [None], PATIENCE)[0].digest == artifacts["update"].digest


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.99])
def test_a_truncated_program_is_refused(inspector: Inspector, artifacts: dict[str, Artifact], part: float) -> None:
    data = artifacts["gradient"].data
    with pytest.raises(ProgramRefused, match="'gradient'"):
        inspector.inspect([replace(artifacts["gradient"], data=data[: int(part * len(data))])], [None], PATIENCE)


def test_flipped_bits_are_refused_or_change_nothing(inspector: Inspector, artifacts: dict[str, Artifact]) -> None:
    """Some of these end the parser or hold it for ever; the caller only ever sees an answer."""
    whole = artifacts["update"]
    for position in range(3, len(whole.data), len(whole.data) // 4):
        assert inspector.self_test(PATIENCE) == PASSED
        data = bytearray(whole.data)
        data[position] ^= 1 << (position % 8)
        try:
            found = inspector.inspect([replace(whole, data=bytes(data))], [SIGNATURES["update"]], 10.0)
        except ProgramRefused as refusal:
            assert refusal.message.startswith("program 'update': ")
        else:
            assert found[0].digest == whole.digest
    assert inspector.inspect([whole], [SIGNATURES["update"]], PATIENCE)


def test_a_program_that_is_too_long_is_not_even_sent(inspector: Inspector) -> None:
    with pytest.raises(ProgramRefused, match="at most 67108864 are accepted"):
        inspector.inspect([Artifact("big", bytes(Limits.artifact_bytes + 1), "")], [None], PATIENCE)
    assert inspector.pid is None


def test_an_inspector_that_hangs_is_ended_at_the_deadline(inspector: Inspector, artifacts: dict[str, Artifact]) -> None:
    assert inspector.self_test(PATIENCE) == PASSED
    first = pid_of(inspector)
    freeze(first)
    with pytest.raises(ProgramRefused, match=r"'update': while it was read, the inspector did not answer"):
        inspector.inspect([artifacts["update"]], [None], 0.2)
    assert not psutil.pid_exists(first)
    assert inspector.inspect([artifacts["update"]], [None], PATIENCE)


def test_an_inspector_that_dies_refuses_its_program_with_the_reason(
    inspector: Inspector, artifacts: dict[str, Artifact]
) -> None:
    assert inspector.self_test(PATIENCE) == PASSED
    first = pid_of(inspector)
    freeze(first)
    killer = threading.Timer(0.1, os.kill, (first, signal.SIGKILL))
    killer.start()
    with pytest.raises(ProgramRefused, match=r"'update': while it was read, the inspector was ended by SIGKILL"):
        inspector.inspect([artifacts["update"]], [None], PATIENCE)
    killer.join()
    assert inspector.inspect([artifacts["update"]], [None], PATIENCE)


def test_an_inspector_that_dies_idle_is_not_the_programs_fault(inspector: Inspector, artifacts: dict[str, Artifact]) -> None:
    assert inspector.self_test(PATIENCE) == PASSED
    first = pid_of(inspector)
    os.kill(first, signal.SIGKILL)
    until = time.monotonic() + PATIENCE
    # It is a zombie at once, but gone only when its last thread is; it is left for the inspector to wait for.
    while os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert inspector.inspect([artifacts["update"]], [None], PATIENCE)
    assert inspector.pid != first


def test_a_late_start_is_not_the_programs_fault(inspector: Inspector, artifacts: dict[str, Artifact]) -> None:
    freeze(pid_of(inspector))
    with pytest.raises(OutOfTime):
        inspector.inspect([artifacts["update"]], [None], 0.1)
    assert inspector.pid is None


def test_self_tests_that_were_ended_are_told_apart_from_wrong_ones(inspector: Inspector) -> None:
    os.kill(pid_of(inspector), signal.SIGSEGV)
    assert inspector.self_test(PATIENCE) == f"{NOT_RUN}: the inspector was ended by SIGSEGV"
    freeze(pid_of(inspector))
    assert inspector.self_test(0.1) == f"{NOT_RUN}: the inspector did not answer before its deadline; it was ended"


def test_too_little_memory_is_a_verdict_with_its_last_words(
    artifacts: dict[str, Artifact], capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(Inspector(memory=200 << 20)) as inspector:
        assert inspector.self_test(PATIENCE) == "the self-tests: the inspector ended with exit status 1"
        assert capsys.readouterr().err.startswith("the last words of the inspector:\n    ")
        with pytest.raises(EngineFailed):
            inspector.inspect([artifacts["update"]], [None], PATIENCE)


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="reads Linux's account of a process's limits")
def test_the_process_is_confined(inspector: Inspector) -> None:
    assert inspector.self_test(PATIENCE) == PASSED
    text = Path(f"/proc/{pid_of(inspector)}/limits").read_text()
    soft = {line[:26].strip(): line[26:].split()[0] for line in text.splitlines()[1:]}
    assert soft["Max core file size"] == "0"
    assert soft["Max address space"] == str(4 << 30)
    assert int(soft["Max cpu time"]) < 200
    assert os.getsid(pid_of(inspector)) == pid_of(inspector)


def test_the_process_ends_with_its_owner(inspector: Inspector) -> None:
    first = psutil.Process(pid_of(inspector))
    assert inspector._process is not None
    inspector._process._socket.close()
    assert first.wait(timeout=30) == 0


def test_closing_twice_is_closing_once(inspector: Inspector) -> None:
    first = pid_of(inspector)
    inspector.close()
    inspector.close()
    assert inspector.pid is None and not psutil.pid_exists(first)


def test_an_inspector_that_speaks_nonsense_is_replaced(
    inspector: Inspector, artifacts: dict[str, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one might that a hostile program has taken over."""
    program = "import socket, sys; socket.socket(fileno=int(sys.argv[3])).sendall(b'GET / HTTP/1.1')"
    babbling = tmp_path / "python"
    babbling.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
    babbling.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(babbling))
        with pytest.raises(EngineFailed, match="the inspector spoke nonsense"):
            inspector.inspect([artifacts["update"]], [SIGNATURES["update"]], PATIENCE)
    assert inspector.inspect([artifacts["update"]], [SIGNATURES["update"]], PATIENCE)[0].digest == artifacts["update"].digest
