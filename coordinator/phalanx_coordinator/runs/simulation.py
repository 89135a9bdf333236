"""A simulation: chunks handed out as members ask for them, counted exactly once, so a slow member holds nobody up.

Under ``rebalance`` the chunks that a lost member owes are given back and taken by others; it may come back. The
checkpoint of a simulation is its ledger: a resumed run counts what is left, in the chunks that it was cut into at first.
"""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx_coordinator.checkpoints.checkpoint import Checkpoint, Origin
from phalanx_coordinator.checkpoints.writer import CheckpointWriter
from phalanx_coordinator.members.membership import Membership
from phalanx_coordinator.members.placement import Placement
from phalanx_coordinator.members.remote_members import RemoteMembers
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.members.timing import Deadlines
from phalanx_coordinator.members.watch import MemberWatch
from phalanx_coordinator.runs.checks import check_simulation
from phalanx_coordinator.runs.reports import simulation_reports
from phalanx_coordinator.runs.resumption import NOTHING, Resumption, experiment_digest
from phalanx_coordinator.waiting import guarded, side_by_side
from phalanx_proto.chunks import MAX_CHUNKS, ChunkLedger
from phalanx_proto.errors import CorruptData, InvalidExperiment, InvalidRequest, LedgerMismatch, PhalanxError, WorkerLost
from phalanx_proto.jobs import (
    Event,
    EventListener,
    Listener,
    MemberReport,
    Progress,
    SimulationOutcome,
    SimulationRequest,
    SimulationSeconds,
    unheard,
)
from phalanx_worker.inventory import Inventory
from phalanx_worker.pool import EngineProcess, Pool

CHUNKS_A_SLOT = 32
"""Chunks that each slot gets where the chunk size is chosen here: enough to even out, few enough to cost nothing."""
SMALLEST, LARGEST = 1 << 14, 1 << 30
"""Samples of a chosen chunk: below, the overhead shows; above, progress is slow to see."""
AHEAD = 2
"""Chunks that a remote member has at once, so that it never waits for the network."""


def chunk_size(samples: int, chunk: int | None, placement: Placement) -> int:
    """Samples of a chunk; raises InvalidExperiment if members would get none, or there would be too many chunks."""
    slots = sum(member.slots for member in placement.members)
    members = len(placement.members)
    if chunk is None:
        even = -(-samples // (slots * CHUNKS_A_SLOT))
        chunk = max(1, min(max(even, SMALLEST), LARGEST, max(samples // members, 1)))
        chunk = max(chunk, -(-samples // MAX_CHUNKS))
    chunks = -(-samples // chunk)
    if chunks < members:
        raise InvalidExperiment(
            f"{samples} samples in chunks of {chunk} are {chunks} chunks for {members} members; every member must get one: "
            f"use chunks of at most {max(samples // members, 1)} samples, or fewer members"
        )
    if chunks > MAX_CHUNKS:
        raise InvalidExperiment(
            f"{samples} samples in chunks of {chunk} are {chunks} chunks; at most {MAX_CHUNKS} are kept account of: "
            f"use chunks of at least {-(-samples // MAX_CHUNKS)} samples"
        )
    return chunk


def plan_simulation(request: SimulationRequest, placement: Placement, resume: Checkpoint | None = None) -> ChunkLedger:
    """Check a request completely and cut it into chunks, or take what a checkpoint of it left; raises InvalidExperiment."""
    check_simulation(request)
    if resume is not None:
        return ChunkLedger.restore(resume.state.get("ledger", {}))
    return ChunkLedger(request.samples, chunk_size(request.samples, placement.chunk, placement))


@dataclass(kw_only=True)
class SimulationRun:
    """One simulation under way."""

    request: SimulationRequest
    placement: Placement
    ledger: ChunkLedger
    pool: Pool
    remote: RemoteMembers
    inventory: Inventory
    deadlines: Deadlines
    listener: Listener
    on_event: EventListener = unheard
    writer: CheckpointWriter | None = None
    """None keeps nothing."""
    resume: Resumption = NOTHING
    compute: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reserved = {member.name for member in self.placement.members}
        self.members = Membership(
            remote=self.remote, placement=self.placement, inventory=self.inventory, on_loss=self.request.on_loss,
            on_event=self.on_event, backoff=self.deadlines.rejoin,
        )  # fmt: skip
        self.watch = MemberWatch(self.placement, self.members.standings)
        self._changed = asyncio.Event()  # chunks were given back, or everything is done
        self._working: set[asyncio.Task[None]] = set()
        self._earlier: tuple[MemberReport, ...] = ()
        self._seconds_before = SimulationSeconds(setup=0.0, work=0.0, total=0.0)
        if self.resume.checkpoint is not None:
            self._take_over(self.resume.checkpoint)

    def _take_over(self, checkpoint: Checkpoint) -> None:
        """What the earlier parts did, as information; what they counted is in the ledger."""
        try:
            self._earlier = tuple(MemberReport(**member) for member in checkpoint.state["members"])
            self._seconds_before = SimulationSeconds(**checkpoint.state["seconds"])
        except (KeyError, TypeError) as error:
            raise CorruptData(f"the checkpoint of {checkpoint.update} samples cannot be read: {error}") from None
        self.compute = {report.name: round((report.compute_seconds or 0.0) * 1e9) for report in self._earlier}

    async def run(self, start_pool: Callable[[], Awaitable[None]]) -> SimulationOutcome:
        """Carry it out; if it fails, the caller ends pool and members."""
        self._began = time.monotonic()
        self.listener(Progress(phase="starting", unit="samples"))
        await self.members.start(f"simulation-{self.request.seed}", start_pool())
        notes = [*self.placement.notes, *await self.members.admit()]
        notes += self.resume.notes
        if self.resume.checkpoint is not None:
            self.on_event(Event(time=time.time(), kind="resumed", reason=f"after {self.ledger.samples} samples"))
        await self.members.bind(self._warm_worker, self._warm_up())
        self._ready = time.monotonic()
        notes += await self._count()
        seconds = self._seconds()
        if not self.ledger.done or self.ledger.samples != self.request.samples:
            raise LedgerMismatch(f"{self.ledger.samples} of {self.request.samples} samples are accounted for")
        members = self._reports()
        idle = [member.name for member in members if not member.samples]
        if idle and not self.members.rebalances and self.resume.checkpoint is None:
            raise LedgerMismatch(f"{', '.join(idle)} did no accepted work; the result is not kept")
        notes += self.members.notes()
        return SimulationOutcome(
            samples=self.ledger.samples, hits=self.ledger.hits, members=members, seconds=seconds, notes=tuple(notes),
            manifest={},
        )  # fmt: skip

    async def _count(self) -> list[str]:
        """All the work, with its checkpoints; returns what the last of these has to say."""
        if self.writer is None:
            await self._work()
            return []
        self.writer.begin(self.ledger.samples)
        try:
            await self._work()
        finally:
            error = await self.writer.close()
        return [] if error is None else [error.message]

    def _seconds(self) -> SimulationSeconds:
        now, before = time.monotonic(), self._seconds_before
        return SimulationSeconds(
            setup=before.setup + self._ready - self._began, work=before.work + now - self._ready,
            total=before.total + now - self._began,
        )  # fmt: skip

    def _checkpoint(self) -> Checkpoint:
        state = {
            "ledger": self.ledger.state(), "seconds": dataclasses.asdict(self._seconds()),
            "members": [dataclasses.asdict(report) for report in self._reports()],
        }  # fmt: skip
        return Checkpoint(
            kind="simulation", experiment=experiment_digest(self.request), dtype=None, update=self.ledger.samples,
            level="bitwise", origin=Origin.here(self.inventory), state=state, arrays={},
        )  # fmt: skip

    async def _warm_up(self) -> None:
        """Compile the kernel in the own engines, on a range that is not counted."""
        call = {"op": "simulate", "start": 0, "stop": 2, "seed": 0}
        owned = [e for e, o in zip(self.pool.engines, self.placement.owners, strict=True) if o is not None]
        await side_by_side(self._warm_engine(engine, call) for engine in owned)

    async def _warm_engine(self, engine: EngineProcess, call: Mapping[str, Any]) -> None:
        await engine.call(call, deadline=self.deadlines.opening)

    async def _warm_worker(self, worker: RemoteWorker) -> None:
        stream = worker.simulation()
        slots = next(record.slots for record in self.placement.remote if record.name == worker.name)
        await worker.simulate_on(stream, 0, 0, 2 * slots, 0)
        await worker.simulated(stream, self.deadlines.opening)
        await stream.done_writing()

    async def _work(self) -> None:
        """Every chunk, by whoever is there."""
        for engine, owner in zip(self.pool.engines, self.placement.owners, strict=True):
            if owner is not None:
                self._let_work(self._engine(engine, owner.name))
        for worker in self.remote.workers.values():
            self._let_work(self._member(worker))
        self._reserved &= {record.name for record in self.placement.local} | self.remote.workers.keys()
        self.members.begin(self._warm_worker, self._come_back)
        try:
            while self._working:
                ended, _ = await asyncio.wait(self._working, return_when=asyncio.FIRST_COMPLETED)
                self._working -= ended
                for task in ended:
                    task.result()
            if not self.ledger.done:
                raise WorkerLost(f"no member is left to count; {'; '.join(self.members.notes())}")
        finally:
            await self.members.close()
            for task in self._working:
                task.cancel()
            await asyncio.gather(*self._working, return_exceptions=True)

    def _let_work(self, work: Coroutine[Any, Any, None]) -> None:
        self._working.add(asyncio.get_running_loop().create_task(work))

    def _come_back(self, worker: RemoteWorker) -> None:
        self.members.tell("joined", worker.name)
        self._let_work(self._member(worker))

    async def _member(self, worker: RemoteWorker) -> None:
        """The work of a remote member; where it is lost and the run goes on, others are given what it owed."""
        try:
            await guarded(self._worker(worker), [worker])
        except PhalanxError as error:
            if not self.members.rebalances or isinstance(error, InvalidRequest | LedgerMismatch):
                raise
            owed = self.ledger.give_back(worker.name)
            self._reserved.discard(worker.name)
            self.members.tell("lost", worker.name, error.message)
            self.members.tell("rebalanced", worker.name, f"{len(owed)} of its chunks are taken by others")
            self._changed.set()
            self.members.lost(worker, error)

    def _take(self, member: str) -> tuple[int, int, int] | None:
        """The next chunk for a member; the last ones are kept for members that have had none."""
        waiting = self._reserved - {member}
        fresh = self.ledger.chunks - self.ledger.handed_out
        if member not in self._reserved and not self.ledger.returned and fresh <= len(waiting):
            return None
        taken = self.ledger.take(member)
        if taken is not None:
            self._reserved.discard(member)
        return taken

    async def _next(self, member: str) -> tuple[int, int, int] | None:
        """The next chunk for a member, waited for as long as another may have to give some back; None at the end."""
        while (taken := self._take(member)) is None and not self.ledger.done and self.members.rebalances:
            self._changed.clear()
            await self._changed.wait()
        return taken

    async def _engine(self, engine: EngineProcess, member: str) -> None:
        while (taken := await self._next(member)) is not None:
            index, start, stop = taken
            call = {"op": "simulate", "start": start, "stop": stop, "seed": self.request.seed}
            answer = (await engine.call(call, deadline=self._deadline(stop - start))).body
            await self._accept(member, index, start, stop, int(answer["hits"]), int(answer["compute"]))

    async def _worker(self, worker: RemoteWorker) -> None:
        stream = worker.simulation()
        under_way: list[int] = []
        while True:
            while len(under_way) < AHEAD and (taken := self._take(worker.name)) is not None:
                index, start, stop = taken
                under_way.append(stop - start)
                await worker.simulate_on(stream, index, start, stop, self.request.seed)
            if not under_way:
                taken = await self._next(worker.name)
                if taken is None:
                    break
                index, start, stop = taken
                under_way.append(stop - start)
                await worker.simulate_on(stream, index, start, stop, self.request.seed)
            index, start, stop, hits, receipt = await worker.simulated(stream, self._deadline(sum(under_way)))
            under_way.pop(0)
            await self._accept(worker.name, index, start, stop, hits, receipt.compute_ns or 0)
        await stream.done_writing()

    def _deadline(self, samples: int) -> float:
        """Seconds for so many samples on a slow slot: 100 ns each, far above what any CPU needs."""
        return self.deadlines.opening + samples * 1e-7

    async def _accept(self, member: str, index: int, start: int, stop: int, hits: int, nanoseconds: int) -> None:
        if self.ledger.accept(member, index, start, stop, hits):
            self.compute[member] = self.compute.get(member, 0) + nanoseconds
            if self.ledger.done:
                self._changed.set()
            self.listener(self.watch.counted(self.ledger, self.request.samples, member, nanoseconds))
            if self.writer is not None and await self.writer.wanted(self.ledger.samples):
                self.writer.write(self._checkpoint(), time.monotonic())

    def _reports(self) -> tuple[MemberReport, ...]:
        found = simulation_reports(
            self.placement, self.pool, self.remote, self.members.standings, self.compute, self.ledger.by_member
        )
        here = {report.name for report in found}
        return (*found, *(report for report in self._earlier if report.name not in here))
