"""Chunks of a simulation: their size, who gets them, and that every sample counts once."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members.admission import Comparison
from phalanx_coordinator.members.placement import Placement
from phalanx_coordinator.members.timing import Backoff, Deadlines
from phalanx_coordinator.runs.simulation import LARGEST, SMALLEST, SimulationRun, chunk_size, plan_simulation
from phalanx_proto.errors import InvalidExperiment, LedgerMismatch, WorkerLost
from phalanx_proto.execution import Local
from phalanx_proto.jobs import Event, Listener, OnLoss, Progress, SimulationOutcome, SimulationRequest
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


def request(samples: int, on_loss: OnLoss = "abort") -> SimulationRequest:
    return SimulationRequest(samples=samples, seed=7, execution=Local(), on_loss=on_loss)


def quiet(progress: Progress) -> None:
    """Nobody listens."""


def run_of(
    where: Placement, samples: int, engines: Sequence[Any] = (), workers: Sequence[Any] = (), listener: Listener = quiet,
    on_loss: OnLoss = "abort", events: list[Event] | None = None,
) -> SimulationRun:  # fmt: skip
    async def start(where: Placement, label: str, tolerant: bool, engines: asyncio.Event) -> dict[str, WorkerLost]:
        """Daemons that need no start."""
        return {}

    async def start_one(record: WorkerRecord, where: Placement, incarnation: int) -> Any:
        """A daemon that is there again, and stays."""
        remote.workers[record.name] = FakeWorker(record.name)
        return remote.workers[record.name]

    async def drop(name: str) -> None:
        remote.workers.pop(name, None)

    found = SimpleNamespace(backend=lambda name: None, numeric_class="class", slots_found=2)
    remote = SimpleNamespace(
        start=start, start_one=start_one, drop=drop, compare=lambda *of_whom: Comparison(notes=("a note",)),
        workers={worker.name: worker for worker in workers}, handshakes={worker.name: found for worker in workers},
    )  # fmt: skip
    parts: dict[str, Any] = {"pool": SimpleNamespace(engines=list(engines)), "remote": remote, "inventory": None}
    wanted = request(samples, on_loss)
    return SimulationRun(
        request=wanted, placement=where, ledger=plan_simulation(wanted, where), listener=listener,
        deadlines=Deadlines(rejoin=Backoff(first=0.0, attempts=2)), on_event=([] if events is None else events).append, **parts,
    )  # fmt: skip


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
    """A daemon that answers in order; ``wrong`` adds hits, and after ``answers`` it is gone."""

    def __init__(self, name: str, turns: int = 1, *, wrong: int = 0, answers: int = 10**6) -> None:
        self.name, self.turns, self.wrong, self.answers = name, turns, wrong, answers
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
        self.answers -= 1
        if self.answers < 0:
            raise WorkerLost(f"worker {self.name} was ended by SIGKILL", worker=self.name)
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
    assert outcome.notes == ()
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
    assert outcome.notes == ("a note",)
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


@pytest.mark.parametrize("answers", [1, 2, 5])
def test_the_chunks_of_a_lost_member_are_counted_by_others_and_it_comes_back(answers: int) -> None:
    events: list[Event] = []

    async def story() -> SimulationOutcome:
        workers = [FakeWorker("r0", answers=answers), FakeWorker("r1", turns=3)]
        run = run_of(
            placement([1], chunk=1, remote=2), 900, [FakeEngine(turns=9)], workers, on_loss="rebalance", events=events
        )  # fmt: skip
        async with asyncio.timeout(20):
            return await run.run(started)

    outcome = asyncio.run(story())
    assert outcome.samples == 900
    assert sum(member.samples or 0 for member in outcome.members) == 900
    assert [event.kind for event in events if event.member == "r0"] == ["admitted", "lost", "rebalanced", "rejoining", "joined"]
    assert "r0 was lost 1 time, back 1 time; the last reason: worker r0 was ended by SIGKILL" in outcome.notes
    lost = next(member for member in outcome.members if member.name == "r0")
    assert (lost.losses, lost.incarnation) == (1, 2)


def test_the_last_chunks_come_back_to_those_who_had_finished() -> None:
    async def story() -> SimulationOutcome:
        workers = [FakeWorker("r0", turns=200, answers=1)]
        run = run_of(placement([1], chunk=100, remote=1), 300, [FakeEngine()], workers, on_loss="rebalance")
        async with asyncio.timeout(20):
            return await run.run(started)

    assert asyncio.run(story()).samples == 300


def test_a_simulation_that_loses_everybody_ends_by_name() -> None:
    async def story() -> SimulationOutcome:
        workers = [FakeWorker("r0", answers=3), FakeWorker("r1", answers=3)]
        run = run_of(placement([], chunk=10, remote=2), 300, [FakeEngine()], workers, on_loss="rebalance")
        run.members.backoff = Backoff(attempts=0)
        async with asyncio.timeout(20):
            return await run.run(started)

    with pytest.raises(WorkerLost, match="no member is left to count; r0 was lost 1 time"):
        asyncio.run(story())


def test_without_a_choice_a_lost_member_ends_the_simulation() -> None:
    async def story() -> SimulationOutcome:
        run = run_of(placement([1], chunk=10, remote=1), 300, [FakeEngine()], [FakeWorker("r0", answers=3)])
        async with asyncio.timeout(20):
            return await run.run(started)

    with pytest.raises(WorkerLost, match="worker r0 was ended by SIGKILL"):
        asyncio.run(story())
