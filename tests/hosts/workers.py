"""Workers on the hosts, one at a time or in a group file."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

import phalanx
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members.launch import LogSink, WorkerProcess
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.members.timing import Deadlines
from phalanx_proto.errors import PhalanxError
from phalanx_proto.execution import Cluster
from phalanx_proto.fingerprint import source_fingerprint
from phalanx_proto.handshake import Handshake

Result = TypeVar("Result")
DEADLINES = Deadlines(start=60.0)
HASTY = Deadlines(rpc=1.0, heartbeat=2.0, update=3.0, lease=4.0, start=60.0)


def with_worker(
    record: WorkerRecord, work: Callable[[WorkerProcess, RemoteWorker], Awaitable[Result]], deadlines: Deadlines = DEADLINES,
    log: LogSink | None = None, token: str = "",
) -> Result:  # fmt: skip
    """Start one worker, let ``work`` look at it, and close it whatever happens."""

    async def story() -> Result:
        secret = token or secrets.token_hex(32)
        process = WorkerProcess(record, secret, deadlines, log or (lambda worker, line: None))
        async with asyncio.timeout(100):
            try:
                await process.start(True)
                worker = RemoteWorker(process, secret, "run-1", 1, deadlines)
                try:
                    return await work(process, worker)
                finally:
                    await worker.close()
            finally:
                await process.close()

    return asyncio.run(story())


async def shake(worker: RemoteWorker, record: WorkerRecord) -> Handshake:
    """The first call."""
    request = {"source": source_fingerprint(), "slots": record.slots, "backend": "cpu", "ordinal": 0, "dtype": "float64"}
    return await worker.handshake(request)


def refusal(record: WorkerRecord, deadlines: Deadlines = DEADLINES) -> PhalanxError:
    """Why the worker does not start. What is private of its machine is not in the public part."""

    async def nothing(process: WorkerProcess, worker: RemoteWorker) -> None:
        """Never comes here."""

    with pytest.raises(PhalanxError) as caught:
        with_worker(record, nothing, deadlines)
    error = caught.value
    assert error.message.startswith(f"worker {record.name} ")
    for secret in (record.host, record.python, *record.ssh_options, record.directory):
        assert not secret or secret == record.name or secret not in error.message
    return error


def write_group(folder: Path, records: Sequence[WorkerRecord], precision: str = "float64") -> Cluster:
    """A group file of these workers."""
    lines = ["version = 2", f'precision = "{precision}"', "oversubscribe = true"]
    for record in records:
        lines += ["[[worker]]", f'name = "{record.name}"', f'transport = "{record.transport}"', f"slots = {record.slots}"]
        lines += [f"weight = {record.weight}"]
        if record.transport == "ssh":
            options = ", ".join(f"'{option}'" for option in record.ssh_options)
            lines += [f'host = "{record.host}"', f'python = "{record.python}"', f"ssh_options = [{options}]"]
            lines += [f'directory = "{record.directory}"'] if record.directory else []
    path = folder / f"group-{secrets.token_hex(4)}.toml"
    path.touch(mode=0o600)
    path.write_text("\n".join(lines) + "\n")
    return phalanx.cluster(path)
