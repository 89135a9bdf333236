"""Real engine processes as one pool: the same bits as one engine in this process, and an end that leaves nothing."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import psutil
import pytest

from phalanx_proto import tensors
from phalanx_proto.errors import EngineFailed, Unavailable
from phalanx_worker import lowering, mailbox
from phalanx_worker.opening import FitOpening, data_arena
from phalanx_worker.pool import Arena, EngineProcess, Followers, Pool, SlotSpec, start_all
from tests.worker import builders
from tests.worker.builders import Problem

FOREVER = 10**6
"""Epochs that no test waits for."""


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def shared(runner: asyncio.Runner) -> Iterator[Pool]:
    pool = Pool([SlotSpec(), SlotSpec()])
    runner.run(pool.start())
    yield pool
    runner.run(pool.close())


@pytest.fixture
def problem() -> Problem:
    return builders.make_problem(rows=50, batch=26, epochs=3)


def pids(pool: Pool) -> list[int]:
    return [engine.ready["pid"] for engine in pool.engines]


def opening_of(problem: Problem, weights: Sequence[float]) -> FitOpening:
    return FitOpening(
        sizes=problem.sizes, schedule=problem.schedule, artifacts=builders.artifacts_of(problem.spec), slots=len(weights),
        weights=weights, held=problem.schedule.updates_per_epoch, remote=1,
        state=[shape[0] for shape in lowering.state_shapes(problem.spec)],
    )  # fmt: skip


async def opened(pool: Pool, problem: Problem, weights: Sequence[float]) -> Arena:
    data = data_arena({"x": problem.x, "y": problem.y, "initial": problem.initial})
    try:
        return await pool.open(opening_of(problem, weights), [data])
    finally:
        data.close()


async def committed(pool: Pool, problem: Problem) -> str:
    """Digest of the parameters that the leader holds."""
    out = Arena.create({"out": ((problem.sizes.parameters,), problem.spec.dtype)})
    await pool.call({"op": "parameters", "arena": out.describe()}, arenas=[out], deadline=60.0)
    digest = tensors.digest(np.array(out["out"]))
    out.close()
    return digest


def stretch(problem: Problem) -> dict[str, Any]:
    return {"op": "stretch", "until": problem.schedule.updates, "seconds": 600.0}


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 7.0), (0.0, 1.0)])
def test_a_pool_ends_in_the_bits_of_one_engine(
    runner: asyncio.Runner, shared: Pool, problem: Problem, weights: tuple[float, ...]
) -> None:
    with builders.gang(problem, 1) as leader:
        alone = builders.canonical(leader, problem, [1.0])
        alone.stretch(problem.schedule.updates, 1e9)

    async def run() -> str:
        await opened(shared, problem, weights)
        canaries = (await shared.call({"op": "canaries", "node": True}, deadline=120.0)).body["canaries"]
        assert len({canary["digest"] for canary in canaries}) == 1
        answer = (await shared.call(stretch(problem), deadline=120.0)).body
        assert answer["update"] == problem.schedule.updates and answer["stopped"] is None
        tallies = (await shared.call({"op": "tallies"}, deadline=60.0)).body["tallies"]
        assert sum(tally["rows"] for tally in tallies) == 150
        assert all(bool(tally["rows"]) == bool(weight) for tally, weight in zip(tallies, weights, strict=True))
        digest = await committed(shared, problem)
        await shared.close_fit()
        return digest

    assert runner.run(run()) == tensors.digest(alone.parameters)


def test_a_fit_can_be_closed_and_another_opened(runner: asyncio.Runner, shared: Pool, problem: Problem) -> None:
    async def run() -> list[str]:
        found = []
        for _ in range(3):
            await opened(shared, problem, (1.0, 1.0))
            await shared.call(stretch(problem), deadline=120.0)
            found.append(await committed(shared, problem))
            await shared.close_fit()
        return found

    assert len(set(runner.run(run()))) == 1


def test_a_sum_that_is_not_finite_is_found_with_its_rows(runner: asyncio.Runner, shared: Pool, problem: Problem) -> None:
    ids = builders.ids_of(problem.schedule)
    problem.x[ids[9], 0] = np.inf

    async def run() -> tuple[dict[str, Any], dict[str, Any]]:
        await opened(shared, problem, (1.0, 1.0))
        answer = (await shared.call(stretch(problem), deadline=120.0)).body
        found = (await shared.call({"op": "diagnose"}, deadline=120.0)).body
        await shared.close_fit()
        return answer, found

    answer, found = runner.run(run())
    assert answer == {"update": 0, "epochs": [], "stopped": "not finite"}
    assert found == {"block": 2, "rows": ids[8:12].tolist()}


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "follower"])
def test_an_engine_killed_at_work_is_named_at_once(runner: asyncio.Runner, victim: int) -> None:
    problem = builders.make_problem(rows=50, batch=26, epochs=FOREVER)
    pool = Pool([SlotSpec(), SlotSpec()])

    async def run() -> None:
        await pool.start()
        work = await opened(pool, problem, (1.0, 1.0))
        words = work["mailboxes"][1]
        stretching = asyncio.create_task(pool.call(stretch(problem), deadline=500.0))
        await until(lambda: bool(words[mailbox.DONE] > 20))
        os.kill(pids(pool)[victim], signal.SIGKILL)
        with pytest.raises(EngineFailed, match=f"engine {victim + 1} was ended by SIGKILL"):
            await asyncio.wait_for(stretching, 60)
        if victim == 1:
            with pytest.raises(EngineFailed, match="engine 2 ended while its leader waited for it"):
                pool.followers.check()
        await pool.close()

    runner.run(run())
    assert not any(psutil.pid_exists(pid) for pid in pids(pool))


def test_if_one_engine_does_not_start_none_stays(runner: asyncio.Runner) -> None:
    engines = [EngineProcess("1", SlotSpec()), EngineProcess("2", SlotSpec(ordinal=3))]
    with pytest.raises(Unavailable, match="ordinal 3 was asked for"):
        runner.run(start_all(engines))
    assert not any(engine.alive for engine in engines)


def test_no_followers_guard_nothing(runner: asyncio.Runner) -> None:
    async def answer() -> int:
        return 42

    async def fails() -> int:
        raise EngineFailed("no")

    followers = Followers([])
    assert runner.run(followers.guard(answer())) == 42
    with pytest.raises(EngineFailed, match="no"):
        runner.run(followers.guard(fails()))
    assert runner.run(followers.simulate([0], 1)) == []
    runner.run(followers.released(1.0))
    followers.check()


def test_a_closed_pool_has_no_processes(runner: asyncio.Runner) -> None:
    pool = Pool([SlotSpec()])
    runner.run(pool.start())
    process = psutil.Process(pids(pool)[0])
    runner.run(pool.close())
    assert not process.is_running() and not pool.started
    runner.run(pool.close())
