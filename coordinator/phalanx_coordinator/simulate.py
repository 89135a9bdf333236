"""A simulation: chunks handed out as members ask for them, counted exactly once, so a slow member holds nobody up."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx_coordinator.checks import check_simulation
from phalanx_coordinator.group import guarded
from phalanx_coordinator.members import RemoteMembers, side_by_side
from phalanx_coordinator.placement import Placement
from phalanx_coordinator.remote import RemoteWorker
from phalanx_coordinator.timing import Deadlines
from phalanx_proto.errors import InvalidExperiment, LedgerMismatch
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
from phalanx_proto.ledger import MAX_CHUNKS, ChunkLedger
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


def plan_simulation(request: SimulationRequest, placement: Placement) -> ChunkLedger:
    """Check a request completely and cut it into chunks; raises InvalidExperiment."""
    check_simulation(request)
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
    compute: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reserved = {member.name for member in self.placement.members}

    async def run(self, start_pool: Callable[[], Awaitable[None]]) -> SimulationOutcome:
        """Carry it out; if it fails, the caller ends pool and members."""
        clock = time.monotonic
        began = clock()
        self.listener(Progress(phase="starting", unit="samples"))
        await side_by_side([start_pool(), self.remote.start(self.placement, f"simulation-{self.request.seed}")])
        notes = [*self.placement.notes, *self.remote.admit(self.placement, self.inventory)]
        for name in self.remote.workers:
            self.on_event(Event(time=time.time(), kind="admitted", member=name))
        await self._warm_up()
        ready = clock()
        engines = [
            self._engine(engine, owner.name)
            for engine, owner in zip(self.pool.engines, self.placement.owners, strict=True)
            if owner is not None
        ]
        workers = [self._worker(worker) for worker in self.remote.workers.values()]
        await guarded(side_by_side([*engines, *workers]), self.remote.workers.values())
        worked = clock()
        if not self.ledger.done or self.ledger.samples != self.request.samples:
            raise LedgerMismatch(f"{self.ledger.samples} of {self.request.samples} samples are accounted for")
        members = self._reports()
        idle = [member.name for member in members if not member.samples]
        if idle:
            raise LedgerMismatch(f"{', '.join(idle)} did no accepted work; the result is not kept")
        seconds = SimulationSeconds(setup=ready - began, work=worked - ready, total=clock() - began)
        return SimulationOutcome(
            samples=self.ledger.samples, hits=self.ledger.hits, members=members, seconds=seconds, notes=tuple(notes),
            manifest={},
        )  # fmt: skip

    async def _warm_up(self) -> None:
        """Compile the kernel everywhere, on a range that is not counted."""
        call = {"op": "simulate", "start": 0, "stop": 2, "seed": 0}
        owned = [e for e, o in zip(self.pool.engines, self.placement.owners, strict=True) if o is not None]
        engines = [self._warm_engine(engine, call) for engine in owned]
        workers = [self._warm_worker(worker) for worker in self.remote.workers.values()]
        await guarded(side_by_side([*engines, *workers]), self.remote.workers.values())

    async def _warm_engine(self, engine: EngineProcess, call: Mapping[str, Any]) -> None:
        await engine.call(call, deadline=self.deadlines.opening)

    async def _warm_worker(self, worker: RemoteWorker) -> None:
        stream = worker.simulation()
        slots = next(record.slots for record in self.placement.remote if record.name == worker.name)
        await worker.simulate_on(stream, 0, 0, 2 * slots, 0)
        await worker.simulated(stream, self.deadlines.opening)
        await stream.done_writing()

    def _take(self, member: str) -> tuple[int, int, int] | None:
        """The next chunk for a member; the last ones are kept for members that have had none."""
        waiting = self._reserved - {member}
        if member not in self._reserved and self.ledger.chunks - self.ledger.handed_out <= len(waiting):
            return None
        taken = self.ledger.take(member)
        if taken is not None:
            self._reserved.discard(member)
        return taken

    async def _engine(self, engine: EngineProcess, member: str) -> None:
        while (taken := self._take(member)) is not None:
            index, start, stop = taken
            call = {"op": "simulate", "start": start, "stop": stop, "seed": self.request.seed}
            answer = (await engine.call(call, deadline=self._deadline(stop - start))).body
            self._accept(member, index, start, stop, int(answer["hits"]), int(answer["compute"]))

    async def _worker(self, worker: RemoteWorker) -> None:
        stream = worker.simulation()
        under_way: list[int] = []
        while True:
            while len(under_way) < AHEAD and (taken := self._take(worker.name)) is not None:
                index, start, stop = taken
                under_way.append(stop - start)
                await worker.simulate_on(stream, index, start, stop, self.request.seed)
            if not under_way:
                break
            index, start, stop, hits, receipt = await worker.simulated(stream, self._deadline(sum(under_way)))
            under_way.pop(0)
            self._accept(worker.name, index, start, stop, hits, receipt.compute_ns or 0)
        await stream.done_writing()

    def _deadline(self, samples: int) -> float:
        """Seconds for so many samples on a slow slot: 100 ns each, far above what any CPU needs."""
        return self.deadlines.opening + samples * 1e-7

    def _accept(self, member: str, index: int, start: int, stop: int, hits: int, nanoseconds: int) -> None:
        if self.ledger.accept(member, index, start, stop, hits):
            self.compute[member] = self.compute.get(member, 0) + nanoseconds
            self.listener(Progress(phase="samples", done=self.ledger.samples, total=self.request.samples, unit="samples"))

    def _reports(self) -> tuple[MemberReport, ...]:
        reports = []
        for record in self.placement.members:
            worker = self.remote.workers.get(record.name)
            if worker is None:
                engines = zip(self.placement.owners, self.pool.engines, strict=True)
                device = next(str(e.ready["device"]["kind"]) for o, e in engines if o is not None and o.name == record.name)
            else:
                found = self.remote.handshakes[record.name].backend(record.backend)
                device = found.devices[record.device] if found else ""
            reports.append(
                MemberReport(
                    name=record.name, backend=record.backend, device=device,
                    samples=self.ledger.by_member.get(record.name, 0),
                    compute_seconds=self.compute.get(record.name, 0) / 1e9,
                    resident=worker.resident if worker else None,
                )
            )  # fmt: skip
        return tuple(reports)
