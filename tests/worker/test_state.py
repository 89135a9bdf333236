import asyncio
import gc
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest

from phalanx_proto import tensors
from phalanx_proto.errors import EngineFailed, InvalidRequest, ProgramRefused, UnknownDigest, WrongRun
from phalanx_worker import mailbox
from phalanx_worker.state import ArrayType
from tests.worker import builders
from tests.worker.builders import Problem
from tests.worker.fakes import Bench

ROWS = np.arange(4, dtype=np.int32)


@pytest.fixture
def problem() -> Problem:
    return builders.make_problem()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def carry_out(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_opening_hands_data_and_parameters_to_the_engine(bench: Bench, problem: Problem) -> None:
    canary, receipt = carry_out(bench.state.open(bench.run(problem)))
    assert canary == "canary of [3, 1, 2, 0]" and bench.host.calls == ["open", "canary"]
    assert bench.host.x.tobytes() == problem.x.tobytes()
    assert bench.host.initial.tobytes() == problem.initial.tobytes()
    assert receipt.total_ns is not None and receipt.total_ns > 0 and receipt.resident == 1 << 20
    assert receipt.compute_ns is None, "not measured is not zero"
    carry_out(bench.state.close())


def test_a_second_opening_closes_the_first(bench: Bench, problem: Problem) -> None:
    async def twice() -> None:
        await bench.state.open(bench.run(problem))
        await bench.state.open(bench.run(problem))
        await bench.state.close()
        await bench.state.close()

    carry_out(twice())
    assert bench.host.calls == ["open", "canary", "close"] * 2


def test_parameters_are_assembled_where_the_engines_read_them(bench: Bench, problem: Problem) -> None:
    async def run() -> None:
        await bench.state.open(bench.run(problem))
        for update, value in ((0, 1.0), (1, 2.0), (4, 3.0)):
            data = np.full(problem.sizes.parameters, value).tobytes()
            assembler = bench.state.assembler(update)
            assembler.add(0, data, tensors.checksum(data))
            assert assembler.complete
        work: Any = bench.state._work
        held = work["parameters"][:, : problem.sizes.parameters]
        assert (held[0] == 3.0).all() and (held[1] == 2.0).all()
        await bench.state.close()

    carry_out(run())


def test_without_a_run_there_is_no_update(bench: Bench) -> None:
    with pytest.raises(WrongRun, match="open it first"):
        bench.state.assembler(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": ArrayType(dtype="float32", shape=(50, 5))}, r"x is float32\[50, 5\]"),
        ({"x": ArrayType(dtype="float64", shape=(250,))}, r"x is float64\[250\]"),
        ({"x": ArrayType(dtype="float64", shape=(25, 10))}, r"x has shape \[25, 10\] for 50 rows"),
        ({"y": ArrayType(dtype="int32", shape=(25, 2))}, r"y has shape \[25, 2\] for 50 rows"),
        ({"y": ArrayType(dtype="int64", shape=(50,))}, r"y: int64\[50\] takes 400 bytes, blob .* has 200"),
        ({"y": ArrayType(dtype="object", shape=(50,))}, "arrays of object do not travel"),
        ({"x": ArrayType(dtype="float64", shape=(50, 6))}, "takes 2400 bytes, blob .* has 2000"),
        ({"canary_rows": ()}, "the canary's rows are not a block"),
        ({"canary_rows": (0, 1, 2, 3, 4)}, "the canary's rows are not a block"),
        ({"canary_rows": (50,)}, "a canary row lies outside the data"),
        ({"canary_rows": ((1 << 32) - 1,)}, "a canary row lies outside the data"),
    ],
)
def test_a_run_that_does_not_fit_its_data_is_refused(
    bench: Bench, problem: Problem, change: dict[str, Any], message: str
) -> None:
    run = bench.run(problem)
    gc.collect()
    held = psutil.Process().num_fds()
    with pytest.raises(InvalidRequest, match=message):
        carry_out(bench.state.open(replace(run, **change)))
    gc.collect()  # a traceback holds the arrays until then
    assert bench.host.calls == [] and psutil.Process().num_fds() == held


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("sizes", {"dtype": "float16"}, "dtype 'float16'"),
        ("sizes", {"block": 0}, "a block of 0 rows"),
        ("sizes", {"block": 33}, "a block of 33 rows"),
        ("sizes", {"parameters": 0}, "0 parameters"),
        ("sizes", {"parameters": 40}, r"initial: float64\[40\] takes 320 bytes, blob .* has 312"),
        ("sizes", {"parameters": 1 << 60}, "takes .* bytes; at most"),
        ("schedule", {"batch": 0}, "a batch of 0 rows"),
        ("schedule", {"rows": 0}, "0 rows"),
        ("schedule", {"rows": 1 << 31}, "2147483648 rows"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    bench: Bench, problem: Problem, part: str, change: dict[str, Any], message: str
) -> None:
    run = bench.run(problem)
    with pytest.raises(InvalidRequest, match=message):
        carry_out(bench.state.open(replace(run, **{part: replace(getattr(run, part), **change)})))
    assert bench.host.calls == []


def test_all_that_is_wrong_is_listed_at_once(bench: Bench, problem: Problem) -> None:
    run = bench.run(problem)
    wrong = replace(run, sizes=replace(run.sizes, block=0, parameters=0), canary_rows=())
    with pytest.raises(InvalidRequest, match=r"a block of 0 rows; 0 parameters; the canary's rows"):
        carry_out(bench.state.open(wrong))


@pytest.mark.parametrize("name", ["program", "x_digest", "y_digest", "parameters_digest"])
def test_a_blob_that_is_not_here_is_named(bench: Bench, problem: Problem, name: str) -> None:
    change: dict[str, Any] = {name: "f" * 64}
    with pytest.raises(UnknownDigest, match="no blob ffff"):
        carry_out(bench.state.open(replace(bench.run(problem), **change)))


def test_a_refused_program_reaches_no_engine(bench: Bench, problem: Problem) -> None:
    bench.inspector.refusal = ProgramRefused("custom call")
    with pytest.raises(ProgramRefused):
        carry_out(bench.state.open(bench.run(problem)))
    assert bench.host.calls == []


@pytest.mark.parametrize("failing", ["open", "canary"])
def test_an_opening_that_fails_in_the_engine_leaves_nobody_in_it(problem: Problem, failing: str) -> None:
    """The followers are released even where the leader knows of no fit; then the next opening works."""
    bench = Bench(slots=3)
    bench.host.failing[failing] = ValueError("JAX says no")

    async def run() -> None:
        with pytest.raises(EngineFailed, match="open: ValueError: JAX says no"):
            await bench.state.open(bench.run(problem))
        assert bench.followers.released_as == [mailbox.LEAVE] * 2
        with pytest.raises(WrongRun):
            bench.state.assembler(0)
        bench.host.failing.clear()
        await bench.state.open(bench.run(problem))
        await bench.state.close()

    carry_out(run())


def test_an_opening_that_fails_in_a_follower_fails(problem: Problem) -> None:
    bench = Bench(slots=2)
    bench.followers.failing = EngineFailed("engine 2 was ended by SIGKILL")
    with pytest.raises(EngineFailed, match="engine 2"):
        carry_out(bench.state.open(bench.run(problem)))
    assert bench.host.calls == ["open", "close"], "what the leader had begun is undone"


def test_a_failed_opening_has_closed_the_run_before(bench: Bench, problem: Problem) -> None:
    async def run() -> None:
        good = bench.run(problem)
        await bench.state.open(good)
        with pytest.raises(InvalidRequest):
            await bench.state.open(replace(good, canary_rows=()))
        assert (await bench.state.simulate(0, 10, 1))[0] == 10, "no fit is open any more"

    carry_out(run())
    assert bench.host.calls == ["open", "canary", "close", "simulate"]


def test_short_work_runs_on_the_loop_and_long_work_beside_it(bench: Bench, problem: Problem) -> None:
    async def run() -> None:
        await bench.state.open(bench.run(problem))
        for _ in range(3):
            await bench.state.nodes(0, 0, 1, ROWS)
        await bench.state.close()

    carry_out(run())
    assert bench.host.calls == ["open", "canary", "nodes", "nodes", "nodes", "close"]
    assert bench.host.threads == [True, True, True, False, False, True]
    assert bench.watch.watched == ["open", "open", "nodes", "nodes", "nodes", "close"] and bench.watch.now is None


def test_what_jax_raises_is_an_engine_failure_and_the_state_lives_on(bench: Bench, problem: Problem) -> None:
    async def run() -> None:
        await bench.state.open(bench.run(problem))
        for error in (RuntimeError("RESOURCE_EXHAUSTED"), MemoryError()):
            bench.host.failing["nodes"] = error
            with pytest.raises(EngineFailed, match=f"nodes: {type(error).__name__}"):
                await bench.state.nodes(0, 0, 1, ROWS)
        bench.host.failing["nodes"] = InvalidRequest("blocks")
        with pytest.raises(InvalidRequest, match="blocks"):
            await bench.state.nodes(0, 0, 1, ROWS)
        bench.host.failing.clear()
        nodes, receipt = await bench.state.nodes(0, 0, 1, ROWS)
        assert list(nodes) == [(0, 1)] and receipt.rows == 4 and receipt.compute_ns == 5
        await bench.state.close()

    carry_out(run())


def test_work_whose_caller_went_away_stays_watched_and_keeps_its_turn(bench: Bench, problem: Problem) -> None:
    async def run() -> None:
        await bench.state.open(bench.run(problem))
        bench.host.gate = threading.Event()
        bench.host.entered.clear()
        abandoned = asyncio.create_task(bench.state.nodes(0, 0, 1, ROWS))
        assert await asyncio.to_thread(bench.host.entered.wait, 30)
        abandoned.cancel()
        with pytest.raises(asyncio.CancelledError):
            await abandoned
        assert bench.watch.now == "nodes", "the thread is still at it"
        following = asyncio.create_task(bench.state.nodes(1, 0, 1, ROWS))
        await asyncio.sleep(0)
        assert bench.host.calls.count("nodes") == 1, "one at a time"
        bench.host.gate.set()
        await following
        assert bench.host.calls.count("nodes") == 2 and bench.watch.now is None
        await bench.state.close()

    carry_out(run())


def test_resident_memory_is_measured_now_and_then(bench: Bench, problem: Problem) -> None:
    async def run() -> list[int | None]:
        await bench.state.open(bench.run(problem))
        found = [(await bench.state.nodes(0, 0, 1, ROWS))[1].resident for _ in range(2)]
        await bench.state.close()
        return found

    assert carry_out(run()) == [1 << 20, None]


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize(("start", "stop"), [(0, 10), (5, 6), (7, 1_000_000), ((1 << 62), (1 << 62) + (1 << 40))])
def test_a_simulation_is_shared_over_the_slots(slots: int, start: int, stop: int) -> None:
    bench = Bench(slots)
    hits, receipt = carry_out(bench.state.simulate(start, stop, 42))
    assert hits == receipt.rows == stop - start
    covered = [(lo, hi) for lo, hi in bench.followers.ranges if lo < hi]
    assert sum(hi - lo for lo, hi in covered) <= stop - start
    assert all(start <= lo < hi <= stop for lo, hi in covered)


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (5, 5), (6, 5), (0, (1 << 40) + 1), ((1 << 63) - 5, 1 << 63), (-1, 5)])
def test_a_range_that_is_none_is_refused(bench: Bench, start: int, stop: int) -> None:
    with pytest.raises(InvalidRequest, match="are not a range"):
        carry_out(bench.state.simulate(start, stop, 1))


def test_a_simulation_does_not_disturb_a_fit(bench: Bench, problem: Problem) -> None:
    async def run() -> None:
        await bench.state.open(bench.run(problem))
        with pytest.raises(InvalidRequest, match="a fit is open"):
            await bench.state.simulate(0, 10, 1)
        await bench.state.close()

    carry_out(run())
