"""The remote members of a coordinator: started side by side, admitted by one table, warm between runs, ended together."""

import asyncio
import dataclasses
import secrets
from collections.abc import Iterable, Mapping

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members import admission
from phalanx_coordinator.members.admission import Comparison, HandshakeExpectation
from phalanx_coordinator.members.launch import LogSink, WorkerProcess
from phalanx_coordinator.members.placement import Placement
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.members.starting import Patience, start_side_by_side
from phalanx_coordinator.members.timing import Deadlines
from phalanx_coordinator.waiting import guarded, side_by_side
from phalanx_proto.errors import PhalanxError
from phalanx_proto.experiment import DType
from phalanx_proto.fingerprint import source_fingerprint
from phalanx_proto.handshake import Handshake
from phalanx_worker.inventory import Inventory

Startup = tuple[WorkerRecord, bool]
"""All that a daemon is started with: its record, whatever its weight, and whether it may oversubscribe."""


class RemoteMembers:
    """The daemons of the run under way, and between runs those of the last one.

    A run takes over what it can use of them. What it has no use for, and what was lost meanwhile, ends before others start.
    """

    def __init__(self, deadlines: Deadlines, log: LogSink) -> None:
        self.workers: dict[str, RemoteWorker] = {}
        self.handshakes: dict[str, Handshake] = {}
        self._deadlines, self._log = deadlines, log
        self._startups: dict[str, Startup] = {}
        self._processes: dict[str, WorkerProcess] = {}
        self._run = ""

    async def start(
        self, placement: Placement, label: str, *, tolerant: bool = False, engines: asyncio.Event | None = None
    ) -> dict[str, PhalanxError]:
        """Have every daemon of ``placement``, bound to a new run whose id begins with ``label``.

        The first that cannot be had ends the start, or, if that is ``tolerant``, the answer says who is absent and why; then
        those that are much slower than the others, and the ``engines`` here, are absent too.
        """
        wanted = {record.name: _startup(record, placement) for record in placement.remote}
        kept = {name for name, worker in self.workers.items() if self._fits(worker, wanted.get(name))}
        await self._end(self._processes.keys() - kept)
        self.handshakes = {name: self.handshakes[name] for name in kept}
        self._run = f"{label}-{secrets.token_hex(8)}"
        for worker in self.workers.values():
            worker.bind(self._run, 1)

        async def have(record: WorkerRecord) -> None:
            await self.start_one(record, placement, 1)

        starts = {record.name: have(record) for record in placement.remote if record.name not in kept}
        absent: dict[str, PhalanxError] = {}
        if tolerant:
            patience = Patience(deadlines=self._deadlines)
            if kept:
                patience.ready(0.0, remote=True)
            absent = await start_side_by_side(starts, patience, engines or asyncio.Event())
        else:
            await side_by_side(starts.values())
        self.workers = {record.name: self.workers[record.name] for record in placement.remote if record.name not in absent}
        return absent

    def _fits(self, worker: RemoteWorker, wanted: Startup | None) -> bool:
        return self._startups[worker.name] == wanted and not worker.process.lost.done()

    async def start_one(self, record: WorkerRecord, placement: Placement, incarnation: int) -> RemoteWorker:
        """Start one daemon as the given incarnation and ask it who it is; if that fails, nothing of it is left."""
        try:
            return await self._start(record, placement, incarnation)
        except BaseException:
            await asyncio.shield(self.drop(record.name))
            raise

    async def _start(self, record: WorkerRecord, placement: Placement, incarnation: int) -> RemoteWorker:
        token = secrets.token_hex(32)
        process = WorkerProcess(record, token, self._deadlines, self._log)
        self._processes[record.name] = process
        self._startups[record.name] = _startup(record, placement)
        await process.start(placement.oversubscribe)
        worker = RemoteWorker(process, token, self._run, incarnation, self._deadlines)
        self.workers[record.name] = worker
        request = {
            "source": source_fingerprint(), "slots": record.slots, "backend": record.backend, "ordinal": record.device,
            "dtype": placement.dtype,
        }  # fmt: skip
        self.handshakes[record.name] = await worker.handshake(request)
        return worker

    def compare(self, record: WorkerRecord, placement: Placement, inventory: Inventory) -> Comparison:
        """How a member's handshake differs from what the run needs."""
        wanted = _expectation(record, placement, inventory.platform.versions, inventory.platform.python)
        return admission.compare_handshake(wanted, self.handshakes[record.name])

    async def release(self) -> None:
        """Unbind the run everywhere; the daemons stay warm for the next one."""
        closing = side_by_side(worker.close_run() for worker in self.workers.values())
        await guarded(closing, self.workers.values())

    async def close(self) -> None:
        """End every daemon; nothing of them is left."""
        await self._end(set(self._processes))

    async def _end(self, names: Iterable[str]) -> None:
        ending = [self._end_one(name) for name in names]
        await asyncio.gather(*ending)

    async def drop(self, name: str) -> None:
        """End one daemon, whatever its state; what it said of itself is kept for the report."""
        if name in self._processes:
            await self._end_one(name)

    async def _end_one(self, name: str) -> None:
        worker = self.workers.pop(name, None)
        self._startups.pop(name, None)
        process = self._processes.pop(name)
        await (process if worker is None else worker).close()


def _startup(record: WorkerRecord, placement: Placement) -> Startup:
    return dataclasses.replace(record, weight=1.0), placement.oversubscribe


def _expectation(
    record: WorkerRecord, placement: Placement, versions: Mapping[str, str | None], python: str
) -> HandshakeExpectation:
    dtype: DType = placement.dtype
    return HandshakeExpectation(
        worker=record.name, source=source_fingerprint(), jax=versions.get("jax") or "",
        jaxlib=versions.get("jaxlib") or "", python=python, slots=record.slots, backend=record.backend,
        device=record.device, dtype=dtype, oversubscribe=placement.oversubscribe,
    )  # fmt: skip
