"""Chunks of a simulation: their size, who gets them, and that every sample counts once."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx_coordinator.cluster_record import WorkerRecord
from phalanx_coordinator.placement import Placement
from phalanx_coordinator.simulate import LARGEST, SMALLEST, SimulationRun, chunk_size, plan_simulation
from phalanx_coordinator.timing import Deadlines
from phalanx_proto.errors import InvalidExperiment, LedgerMismatch, WorkerLost
from phalanx_proto.execution import Local
from phalanx_proto.jobs import Listener, Progress, SimulationOutcome, SimulationRequest
from phalanx_proto.receipt import Receipt

REPORT = {"device": {"kind": "fake"}}


def placement(slots: Sequence[int] = (1,), chunk: int | None = None, remote: int = 0) -> Placement:
    """Local members with so many slots each, then ``remote`` members behind a daemon."""
    local = [WorkerRecord(name=f"m{n}", transport="local", slots=count) for n, count in enumerate(slots)]
    others = [WorkerRecord(name=f"r{n}", transport="socket") for n in range(remote)]
    return Placement(kind="cluster", dtype="float64", members=(*local, *others), chunk=chunk)


@given(st.integers(1, 10**12), st.lists(st.integers(1, 4), min_size=1, max_size=8))
def test_a_chosen_chunk_gives_every_member_one_and_never_too_many(samples: int, slots: list[int]) -> None:
    if samples < len(slots):
        with pytest.raises(InvalidExperiment):
            chunk_size(samples, None, placement(slots))
        return
    chunk = chunk_size(samples, None, placement(slots))
    chunks = -(-samples // chunk)
    assert len(slots) <= chunks <= 1_000_000
    assert chunk <= max(LARGEST, -(-samples // 1_000_000))


def test_a_chosen_chunk_is_neither_tiny_nor_huge() -> None:
    assert chunk_size(10**6, None, placement([2])) == SMALLEST
    assert chunk_size(10**12, None, placement([1])) == LARGEST
    assert chunk_size(64 * 10**7, None, placement([2])) == 10**7


def test_a_given_chunk_is_kept() -> None:
    assert chunk_size(10**6, 999_983, placement([1], 999_983)) == 999_983
    assert chunk_size(10**6, 1, placement([1], 1)) == 1


def test_fewer_chunks_than_members_are_refused_with_the_size_that_fits() -> None:
    with pytest.raises(InvalidExperiment, match=r"are 2 chunks for 3 members.*use chunks of at most 333 samples"):
        chunk_size(1000, 500, placement([1, 1, 1]))
    with pytest.raises(InvalidExperiment, match=r"1 samples .* for 2 members"):
        chunk_size(1, None, placement([1, 1]))


def test_more_than_a_million_chunks_are_refused_with_the_size_that_fits() -> None:
    assert chunk_size(10**6, 1, placement()) == 1
    with pytest.raises(InvalidExperiment, match="at most 1000000 are kept account of: use chunks of at least 2 samples"):
        chunk_size(10**6 + 1, 1, placement())


def request(samples: int) -> SimulationRequest:
    return SimulationRequest(samples=samples, seed=7, execution=Local())


def quiet(progress: Progress) -> None:
    """Nobody listens."""


def run_of(
    where: Placement, samples: int, engines: Sequence[Any] = (), workers: Sequence[Any] = (), listener: Listener = quiet
) -> SimulationRun:
    async def start(where: Placement, label: str) -> None:
        """Daemons that need no start."""

    found = SimpleNamespace(backend=lambda name: None)
    remote = SimpleNamespace(
        start=start, admit=lambda where, machine: ["a note"], workers={worker.name: worker for worker in workers},
        handshakes={worker.name: found for worker in workers},
    )  # fmt: skip
    parts: dict[str, Any] = {"pool": SimpleNamespace(engines=list(engines)), "remote": remote, "inventory": None}
    ledger = plan_simulation(request(samples), where)
    return SimulationRun(
        request=request(samples), placement=where, ledger=ledger, deadlines=Deadlines(), listener=listener, **parts
    )


def test_the_last_chunks_are_kept_for_members_that_had_none() -> None:
    run = run_of(placement([1, 1, 1], chunk=10), 40)
    assert run._take("m0") == (0, 0, 10)
    assert run._take("m0") == (1, 10, 20)
    assert run._take("m0") is None
    assert run._take("m1") == (2, 20, 30)
    assert run._take("m1") is None
    assert run._take("m2") == (3, 30, 40)
    assert run._take("m2") is None


@given(st.integers(1, 6), st.integers(0, 30), st.randoms(use_true_random=False))
def test_every_member_gets_a_chunk_whoever_asks_first(members: int, more: int, chance: Any) -> None:
    run = run_of(placement([1] * members, chunk=1), members + more)
    names = [f"m{n}" for n in range(members)]
    taken = dict.fromkeys(names, 0)
    asking = list(names)
    while asking:
        name = chance.choice(asking)
        if run._take(name) is None:
            asking.remove(name)
        else:
            taken[name] += 1
    assert min(taken.values()) >= 1
    assert sum(taken.values()) == members + more


class FakeEngine:
    """An engine that counts a third of the samples as hits, and takes ``turns`` turns of the loop for a chunk."""

    def __init__(self, turns: int = 1, fault: Exception | None = None) -> None:
        self.turns, self.fault, self.ready = turns, fault, REPORT

    async def call(self, body: dict[str, Any], *, deadline: float) -> SimpleNamespace:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        count = body["stop"] - body["start"]
        if self.fault is not None and body["seed"]:
            raise self.fault
        return SimpleNamespace(body={"hits": count // 3, "compute": count})


class FakeWorker:
    """A daemon that answers in order; ``twice`` repeats every answer, ``wrong`` adds hits."""

    def __init__(self, name: str, turns: int = 1, *, twice: bool = False, wrong: int = 0) -> None:
        self.name, self.turns, self.twice, self.wrong = name, turns, twice, wrong
        self.resident = 1
        self.process = SimpleNamespace(lost=asyncio.get_running_loop().create_future())
        self.most = 0

    def simulation(self) -> Any:
        async def done_writing() -> None:
            """Nothing follows."""

        return SimpleNamespace(queue=[], done_writing=done_writing)

    async def simulate_on(self, stream: Any, index: int, start: int, stop: int, seed: int) -> None:
        stream.queue.append((index, start, stop, (stop - start) // 3 + self.wrong * (stop - start)))
        self.most = max(self.most, len(stream.queue))

    async def simulated(self, stream: Any, deadline: float) -> tuple[int, int, int, int, Receipt]:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        return (*stream.queue.pop(0), Receipt(rows=1, compute_ns=5))


async def started() -> None:
    """A pool that needs no start."""


def carry_out(run: SimulationRun) -> SimulationOutcome:
    async def limited() -> SimulationOutcome:
        async with asyncio.timeout(20):
            return await run.run(started)

    return asyncio.run(limited())


def test_local_members_count_every_sample_once() -> None:
    told: list[Progress] = []
    run = run_of(placement([1, 2], chunk=30), 1000, [FakeEngine(), FakeEngine(), FakeEngine()], listener=told.append)
    outcome = carry_out(run)
    assert outcome.samples == 1000
    assert outcome.hits == 33 * 10 + 3
    assert sum(member.samples or 0 for member in outcome.members) == 1000
    assert outcome.notes == ("a note",)
    done = [progress.done for progress in told if progress.phase == "samples"]
    assert done == sorted(done) and done[-1] == 1000 and len(done) == 34


def test_a_slow_member_holds_nobody_up_but_gets_its_chunk() -> None:
    run = run_of(placement([1, 1], chunk=1), 200, [FakeEngine(turns=100), FakeEngine()])
    slow, fast = carry_out(run).members
    assert 1 <= (slow.samples or 0) < 10
    assert (fast.samples or 0) > 190


def test_remote_members_have_two_chunks_at_once() -> None:
    async def story() -> tuple[SimulationOutcome, FakeWorker]:
        worker = FakeWorker("r0")
        run = run_of(placement([1], chunk=10, remote=1), 300, [FakeEngine()], [worker])
        return await run.run(started), worker

    outcome, worker = asyncio.run(story())
    assert worker.most == 2
    assert outcome.samples == 300
    assert outcome.hits == 3 * 30
    assert all(member.samples for member in outcome.members)


def test_impossible_hits_end_the_run_and_name_the_member() -> None:
    async def story() -> SimulationOutcome:
        return await run_of(placement([1], chunk=10, remote=1), 300, [FakeEngine()], [FakeWorker("r0", wrong=2)]).run(started)

    with pytest.raises(LedgerMismatch, match="r0: chunk"):
        asyncio.run(story())


def test_a_lost_engine_ends_the_run() -> None:
    run = run_of(placement([1, 1], chunk=10), 300, [FakeEngine(), FakeEngine(fault=WorkerLost("gone"))])
    with pytest.raises(WorkerLost, match="gone"):
        carry_out(run)
