"""A group stays warm between runs: what the next one can use of it is taken over, the rest ends."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import phalanx
from phalanx.results import Fitted
from phalanx_proto.execution import Execution
from tests.system.groups import classifier, daemons, end, engines, write_group

L, S = ("local", 1.0), ("socket", 1.0)


def fit(execution: Execution) -> Fitted:
    rows = phalanx.datasets.synthetic(64, 8, 3, seed=1).rows("train")
    return phalanx.fit(classifier(), rows, phalanx.training(epochs=1, batch=32, rate=0.1), execution=execution)


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    phalanx.shutdown()
    yield
    phalanx.shutdown()


def test_a_group_from_run_to_run(tmp_path: Path) -> None:
    three = fit(write_group(tmp_path, [L, S, S]))
    first, pool = set(daemons()), [engine.pid for engine in engines()]
    assert len(first) == 2

    heavier = fit(write_group(tmp_path, [("local", 5.0), S, ("socket", 2.0)]))
    assert heavier.digest == three.digest
    assert set(daemons()) == first and [engine.pid for engine in engines()] == pool

    simulation = phalanx.monte_carlo(samples=10**6, execution=write_group(tmp_path, [L, S, S]))
    assert simulation.hits == 785_856
    assert set(daemons()) == first

    assert fit(write_group(tmp_path, [L, S])).digest == three.digest
    left = set(daemons())
    assert len(left) == 1 and left < first

    (pid,) = left
    end(pid)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=20)
    assert fit(write_group(tmp_path, [L, S])).digest == three.digest
    again = set(daemons())
    assert len(again) == 1 and pid not in again

    assert fit(phalanx.local(1)).digest == three.digest
    assert daemons() == {}

    family = engines()
    assert len(family) == 1
    phalanx.shutdown()
    assert not any(process.is_running() for process in family)
    assert fit(phalanx.local(1)).digest == three.digest


def test_a_refused_request_leaves_the_warm_group_alone(tmp_path: Path) -> None:
    fit(write_group(tmp_path, [L, S]))
    before = set(daemons()), [engine.pid for engine in engines()]
    with pytest.raises(phalanx.PhalanxError):
        phalanx.monte_carlo(samples=1, execution=write_group(tmp_path, [L, S]))
    with pytest.raises(phalanx.PhalanxError):
        fit(write_group(tmp_path, [("nowhere", 1.0)]))
    assert (set(daemons()), [engine.pid for engine in engines()]) == before
