"""The remote members of one run: started side by side, admitted by one table, ended together."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from phalanx_coordinator import admission
from phalanx_coordinator.admission import HandshakeExpectation
from phalanx_coordinator.cluster_record import WorkerRecord
from phalanx_coordinator.group import first_error
from phalanx_coordinator.launch import LogSink, WorkerProcess
from phalanx_coordinator.placement import Placement
from phalanx_coordinator.remote import RemoteWorker
from phalanx_coordinator.timing import Deadlines
from phalanx_proto.experiment import DType
from phalanx_proto.fingerprint import source_fingerprint
from phalanx_proto.handshake import Handshake
from phalanx_worker.inventory import Inventory


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
    """The daemons of a run."""

    def __init__(self, placement: Placement, run: str, deadlines: Deadlines, log: LogSink) -> None:
        self.workers: dict[str, RemoteWorker] = {}
        self.handshakes: dict[str, Handshake] = {}
        self._placement, self._run, self._deadlines, self._log = placement, run, deadlines, log
        self._processes: list[WorkerProcess] = []

    async def start(self) -> None:
        """Start every daemon, side by side."""
        await side_by_side(self._start(record) for record in self._placement.remote)

    async def _start(self, record: WorkerRecord) -> None:
        token = secrets.token_hex(32)
        process = WorkerProcess(record, token, self._deadlines, self._log)
        self._processes.append(process)
        await process.start(self._placement.oversubscribe)
        worker = RemoteWorker(process, token, self._run, 1, self._deadlines)
        self.workers[record.name] = worker
        request = {
            "source": source_fingerprint(), "slots": record.slots, "backend": record.backend, "ordinal": record.device,
            "dtype": self._placement.dtype,
        }  # fmt: skip
        self.handshakes[record.name] = await worker.handshake(request)

    def admit(self, inventory: Inventory) -> list[str]:
        """Compare every handshake with what the run needs; raises one table of all mismatches."""
        versions = inventory.platform.versions
        comparisons = [
            admission.compare_handshake(
                _expectation(record, self._placement, versions, inventory.platform.python), self.handshakes[record.name]
            )
            for record in self._placement.remote
        ]
        return admission.admit(comparisons)

    async def close(self) -> None:
        """End every daemon; nothing of them is left."""
        connected = {id(worker.process) for worker in self.workers.values()}
        closing: Sequence[Callable[[], Awaitable[None]]] = [
            *(worker.close for worker in self.workers.values()),
            *(process.close for process in self._processes if id(process) not in connected),
        ]
        await asyncio.gather(*(close() for close in closing))


def _expectation(
    record: WorkerRecord, placement: Placement, versions: Mapping[str, str | None], python: str
) -> HandshakeExpectation:
    dtype: DType = placement.dtype
    return HandshakeExpectation(
        worker=record.name, source=source_fingerprint(), jax=versions.get("jax") or "",
        jaxlib=versions.get("jaxlib") or "", python=python, slots=record.slots, backend=record.backend,
        device=record.device, dtype=dtype, oversubscribe=placement.oversubscribe,
    )  # fmt: skip
