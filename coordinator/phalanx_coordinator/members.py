"""The remote members of a coordinator: started side by side, admitted by one table, warm between runs, ended together."""

import asyncio
import dataclasses
import secrets
from collections.abc import Awaitable, Iterable, Mapping

from phalanx_coordinator import admission
from phalanx_coordinator.admission import HandshakeExpectation
from phalanx_coordinator.cluster_record import WorkerRecord
from phalanx_coordinator.group import first_error, guarded
from phalanx_coordinator.launch import LogSink, WorkerProcess
from phalanx_coordinator.placement import Placement
from phalanx_coordinator.remote import RemoteWorker
from phalanx_coordinator.timing import Deadlines
from phalanx_proto.experiment import DType
from phalanx_proto.fingerprint import source_fingerprint
from phalanx_proto.handshake import Handshake
from phalanx_worker.inventory import Inventory

Startup = tuple[WorkerRecord, bool]
"""All that a daemon is started with: its record, whatever its weight, and whether it may oversubscribe."""


async def side_by_side(work: Iterable[Awaitable[None]]) -> None:
    """Await all at once; the first failure ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for item in work:
                group.create_task(_awaited(item))
    except BaseExceptionGroup as failures:
        raise first_error(failures) from None


async def _awaited(item: Awaitable[None]) -> None:
    await item


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

    async def start(self, placement: Placement, label: str) -> None:
        """Have every daemon of ``placement``, bound to a new run whose id begins with ``label``."""
        wanted = {record.name: _startup(record, placement) for record in placement.remote}
        kept = {name for name, worker in self.workers.items() if self._fits(worker, wanted.get(name))}
        await self._end(self._processes.keys() - kept)
        run = f"{label}-{secrets.token_hex(8)}"
        for worker in self.workers.values():
            worker.bind(run)
        missing = [record for record in placement.remote if record.name not in kept]
        await side_by_side(self._start(record, placement, run) for record in missing)
        self.workers = {record.name: self.workers[record.name] for record in placement.remote}

    def _fits(self, worker: RemoteWorker, wanted: Startup | None) -> bool:
        return self._startups[worker.name] == wanted and not worker.process.lost.done()

    async def _start(self, record: WorkerRecord, placement: Placement, run: str) -> None:
        token = secrets.token_hex(32)
        process = WorkerProcess(record, token, self._deadlines, self._log)
        self._processes[record.name] = process
        self._startups[record.name] = _startup(record, placement)
        await process.start(placement.oversubscribe)
        worker = RemoteWorker(process, token, run, 1, self._deadlines)
        self.workers[record.name] = worker
        request = {
            "source": source_fingerprint(), "slots": record.slots, "backend": record.backend, "ordinal": record.device,
            "dtype": placement.dtype,
        }  # fmt: skip
        self.handshakes[record.name] = await worker.handshake(request)

    def admit(self, placement: Placement, inventory: Inventory) -> list[str]:
        """Compare every handshake with what the run needs; raises one table of all mismatches."""
        versions = inventory.platform.versions
        comparisons = [
            admission.compare_handshake(
                _expectation(record, placement, versions, inventory.platform.python), self.handshakes[record.name]
            )
            for record in placement.remote
        ]
        return admission.admit(comparisons)

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

    async def _end_one(self, name: str) -> None:
        worker = self.workers.pop(name, None)
        self.handshakes.pop(name, None)
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
