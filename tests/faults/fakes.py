"""Members and an engine of a few lines: real messages, real sums of a tiny gradient, real tree; no process and no socket."""

import asyncio
import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from phalanx_proto.rpc import aio, grpc

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members.admission import Comparison
from phalanx_coordinator.members.placement import Placement
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.members.timing import Deadlines
from phalanx_proto import errors, reduction, tensors, wire
from phalanx_proto.errors import METADATA_KEY, AdmissionRefused, EngineFailed, PhalanxError, Unavailable, WorkerLost
from phalanx_proto.experiment import Sizes
from phalanx_proto.receipt import Receipt
from phalanx_proto.schedule import Schedule
from phalanx_proto.v1 import worker_service_pb2 as messages
from tests.faults.schedules import PHASES, Boundary, Crash, Fault, Phase
from tests.faults.schedules import Place as GroupPlace

Nodes = dict[tuple[int, int], NDArray[np.float64]]
PARAMETERS = 3
INITIAL = np.array([0.3, -0.2, 0.1])
RATE = 0.05
COMPUTING = 0.01
"""Seconds that a member takes for a request."""


def sizes(block: int) -> Sizes:
    """Of the tiny gradient."""
    return Sizes(dtype="float64", parameters=PARAMETERS, metrics=0, outputs=1, block=block, score_block=1)


def leaf(parameters: NDArray[np.float64], rows: Sequence[int]) -> NDArray[np.float64]:
    """Gradient, loss and weight sums of some rows; of sizes so different that the order of additions shows."""
    found = np.zeros(sizes(1).node_size)
    for row in rows:
        scale = 10.0 ** ((row * 7) % 13 - 6)
        found[:PARAMETERS] += np.sin(parameters * (row + 1)) * scale
        found[PARAMETERS] += scale
        found[PARAMETERS + 1] += 1.0
    return found


def nodes_of(parameters: NDArray[np.float64], ids: Sequence[int], block: int, lo: int, hi: int, count: int) -> Nodes:
    """The maximal nodes of blocks [lo, hi); ``ids`` are the rows of that range."""
    leaves = {(k, k + 1): leaf(parameters, ids[(k - lo) * block : (k - lo + 1) * block]) for k in range(lo, hi)}
    return {node: np.array(reduction.combine(leaves, *node)) for node in reduction.maximal_nodes(lo, hi, count)}


def stepped(parameters: NDArray[np.float64], root: NDArray[np.float64]) -> NDArray[np.float64]:
    """The parameters after one update."""
    changed: NDArray[np.float64] = parameters - RATE * np.tanh(root[:PARAMETERS] / root[PARAMETERS + 1])
    return changed


@functools.lru_cache(maxsize=4096)
def unbroken(schedule: Schedule) -> str:
    """The digest of a fit to which nothing happens."""
    parameters = INITIAL.copy()
    for update in range(schedule.updates):
        count = schedule.blocks_of(update)
        epoch, index = schedule.epoch_of(update)
        ids = schedule.order_of(epoch)[index * schedule.batch : (index + 1) * schedule.batch].tolist()
        parameters = stepped(parameters, nodes_of(parameters, ids, schedule.block, 0, count, count)[0, count])
    return tensors.digest(parameters)


class Ended(Exception):
    """The coordinator is gone."""


class Disk:
    """The newest two checkpoints, (update, parameters), and what ends a coordinator around them."""

    def __init__(self, crashes: Sequence[Crash], every: int) -> None:
        self.crashes, self.every = list(crashes), every
        self.kept: list[tuple[int, NDArray[np.float64]]] = [(0, INITIAL)]

    def crash(self, update: int, boundary: Boundary) -> None:
        """End the coordinator if it is to end here."""
        for crash in self.crashes:
            if crash.boundary == boundary and (crash.update == update or (boundary == "full disk" and crash.update <= update)):
                self.crashes.remove(crash)
                if boundary == "full disk":
                    raise Unavailable("the checkpoint cannot be written: no space is left")
                raise Ended

    def save(self, update: int, parameters: NDArray[np.float64]) -> None:
        """Keep a checkpoint, whole or not at all."""
        self.crash(update, "full disk")
        self.crash(update, "before the checkpoint")
        self.kept = [*self.kept[-1:], (update, parameters.copy())]
        self.crash(update, "after the checkpoint")


class Checkpoints:
    """Asks the engine for its state between two updates, as ``FitCheckpoints`` does."""

    def __init__(self, leader: "Leader", disk: Disk) -> None:
        self._leader, self._disk = leader, disk
        self._update = 0

    async def ask(self, update: int) -> bool:
        if update % self._disk.every:
            return False
        self._update = update
        await self._leader.send({"op": "save"})
        return True

    async def take(self) -> None:
        answer = (await self._leader.receive(None, "a checkpoint")).body
        assert answer["update"] == self._update
        self._disk.save(self._update, answer["parameters"])


class Leader:
    """The canonical engine: goes on from the newest checkpoint, counts what it commits, and takes each block once."""

    def __init__(self, schedule: Schedule, work: Mapping[str, NDArray[np.float64]], disk: Disk) -> None:
        self._schedule, self._work, self._disk = schedule, work, disk
        self._own: Nodes = {}
        self._answers: list[dict[str, Any]] = []
        self.first, parameters = disk.kept[-1]
        self.update, self.parameters = self.first, parameters.copy()
        work["parameters"][self.first & 1][:] = parameters

    async def send(self, body: Mapping[str, Any]) -> None:
        match body["op"]:
            case "part":
                self._answers.append(self._part(body["ranges"]))
            case "save":
                self._answers.append({"update": self.update, "parameters": self.parameters.copy()})
            case "commit":
                self._disk.crash(self.update, "before the commit")
                self._answers.append(self._commit(body["remote"]))
                self._disk.crash(self.update - 1, "after the commit")

    async def receive(self, deadline: float | None, waiting_for: str, *, soon: bool = False) -> SimpleNamespace:
        await asyncio.sleep(1e-3)
        return SimpleNamespace(body=self._answers.pop(0))

    def _part(self, ranges: Sequence[tuple[int, int]]) -> dict[str, Any]:
        update = self.update
        epoch, index = self._schedule.epoch_of(update)
        start, block = index * self._schedule.batch, self._schedule.block
        ids = self._schedule.order_of(epoch)[start : start + self._schedule.batch].tolist()
        count = self._schedule.blocks_of(update)
        for lo, hi in ranges:
            if lo < hi:
                found = nodes_of(self.parameters, ids[lo * block : hi * block], block, lo, hi, count)
                assert not found.keys() & self._own.keys()
                self._own |= found
        return {}

    def _commit(self, remote: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
        update = self.update
        nodes = self._own | {(lo, hi): self._work["remote"][index] for lo, hi, index in remote}
        root = reduction.fold(nodes, self._schedule.blocks_of(update))  # raises where a block is missing, or there twice
        assert root[PARAMETERS + 1] == self._schedule.rows_of(update)
        self.parameters, self._own = stepped(self.parameters, root), {}
        self.update += 1
        self._work["parameters"][(update + 1) & 1][:] = self.parameters
        return {"update": update + 1, "epochs": [], "stopped": None}


class Pool:
    """A pool of that one engine."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.followers = self

    async def guard(self, work: Any) -> Any:
        return await work


class Process:
    """A worker's process; gone when ``lost`` says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.socket = ""
        self.lost: asyncio.Future[WorkerLost] = asyncio.get_running_loop().create_future()

    def end(self, what: str) -> None:
        if not self.lost.done():
            self.lost.set_result(WorkerLost(f"worker {self.name} {what}", worker=self.name))

    def expecting(self, nbytes: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    async def close(self) -> None:
        if not self.lost.done():
            self.lost.cancel()


class Member(RemoteWorker):
    """The real client of a worker, on a stream that is played by ``Stream``."""

    def __init__(self, name: str, incarnation: int, schedule: Schedule, faults: list[Fault], deadlines: Deadlines) -> None:
        self.name, self.incarnation, self.resident = name, incarnation, None
        self.process: Any = Process(name)
        self._deadlines, self._token, self._train = deadlines, "", None
        self._metadata = ()  # type: ignore[assignment]
        self._stub = SimpleNamespace(Train=lambda metadata: Stream(self, schedule, faults, deadlines))

    async def close(self) -> None:
        if self._train is not None:
            self._train.cancel()
        await self.process.close()


class Stream:
    """A Train stream: answers requests as a worker does, until a fault is due."""

    def __init__(self, member: Member, schedule: Schedule, faults: list[Fault], deadlines: Deadlines) -> None:
        self._member, self._schedule, self._faults, self._deadlines = member, schedule, faults, deadlines
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._error: Any = None
        self._plan: Any = None
        self._last: list[Any] = []
        self._dead = False
        self._ready_at = 0.0

    async def write(self, sent: tuple[messages.TrainRequest, list[memoryview]]) -> None:
        request, (data,) = sent
        if self._error is not None:
            raise self._error
        if self._dead:
            return
        if request.HasField("plan"):
            self._plan = request.plan
            self._parameters = np.zeros(PARAMETERS)
            self._assembler = tensors.Assembler(8 * PARAMETERS, out=self._parameters.view(np.uint8).data)
        chunk = request.parameters
        self._assembler.add(chunk.offset, data, chunk.checksum)
        self._answer()

    def _answer(self) -> None:
        plan = self._plan
        ids = np.frombuffer(plan.rows, "<i4").tolist()
        count, block = self._schedule.blocks_of(plan.update), self._schedule.block
        nodes = nodes_of(self._parameters, ids, block, plan.lo, plan.hi, count)
        ((whole, payload),) = wire.node_messages(plan.update, nodes, Receipt(rows=len(ids), compute_ns=1000))
        answer: list[Any] = []
        for number, part in enumerate(whole.parts, 1):
            response = messages.TrainResponse(update=plan.update, parts=[part])
            if number == len(whole.parts):
                response.receipt.CopyFrom(whole.receipt)
            answer.append((response, payload[number - 1]))
        wait = COMPUTING
        for phase in PHASES:
            for fault in self._due(plan.update, phase):
                answer, wait = self._happen(fault, answer, wait)
        self._last = self._last or answer
        for response in answer:
            self._say(wait, response)

    def _due(self, update: int, phase: Phase) -> list[Fault]:
        name = self._member.name
        found = [one for one in self._faults if (one.member, one.update, one.phase) == (name, update, phase)]
        for fault in found:
            self._faults.remove(fault)
        return found

    def _say(self, wait: float, what: Any) -> None:
        loop = asyncio.get_running_loop()
        self._ready_at = max(self._ready_at, loop.time() + wait) + 1e-6  # what is said later does not come before
        loop.call_at(self._ready_at, self._deliver, what)

    def _deliver(self, what: Any) -> None:
        if not self._dead:
            self._answers.put_nowait(what)

    def _happen(self, fault: Fault, parts: list[Any], wait: float) -> tuple[list[Any], float]:
        """What is said now, and when."""
        if not parts:  # it is dead already
            return parts, wait
        first = max(len(parts) // 2, 1) if fault.phase == "replying" else len(parts) if fault.phase == "replied" else 0
        moment = {"asked": 0.0, "computing": wait / 2, "replying": wait, "replied": wait + 1e-4}[fault.phase]
        match fault.kind:
            case "slow":
                return parts, wait + fault.seconds
            case "duplicate":
                return [*parts, parts[-1]], wait
            case "reorder":
                return parts[::-1], wait
            case "stale":
                return [*self._last, *parts], wait
            case "corrupt":
                response, payload = parts[-1]
                data = bytearray(payload)
                data[len(data) // 2] ^= 1
                return [*parts[:-1], (response, memoryview(data))], wait
            case "stop" if fault.seconds < self._deadlines.heartbeat:
                return parts, wait + fault.seconds
        for part in parts[:first]:
            self._say(wait, part)
        asyncio.get_running_loop().call_later(moment, self._die, fault)
        return [], wait

    def _die(self, fault: Fault) -> None:
        self._dead = True
        loop, process = asyncio.get_running_loop(), self._member.process
        match fault.kind:
            case "kill":
                process.end("was ended by SIGKILL")
                self._break(grpc.StatusCode.UNAVAILABLE)
            case "stop":
                loop.call_later(self._deadlines.heartbeat, process.end, "gave no sign of life")
            case "cut":
                self._break(grpc.StatusCode.UNAVAILABLE)
            case "engine":
                self._break(grpc.StatusCode.INTERNAL, ((METADATA_KEY, errors.to_wire(EngineFailed("the engine ended"))),))

    def _break(self, code: grpc.StatusCode, metadata: tuple[tuple[str, bytes], ...] = ()) -> None:
        self._error = aio.AioRpcError(code, aio.Metadata(), aio.Metadata(*metadata), "broken")
        self._answers.put_nowait(self._error)

    async def read(self) -> Any:
        found = await self._answers.get()
        if isinstance(found, aio.AioRpcError):
            raise found
        return found

    def cancel(self) -> None:
        self._dead = True

    async def code(self) -> grpc.StatusCode:
        found: grpc.StatusCode = self._error.code()
        return found

    async def details(self) -> str:
        return "broken"

    async def trailing_metadata(self) -> Any:
        return self._error.trailing_metadata()


class Remote:
    """The daemons of a group: started again as each place says."""

    def __init__(self, group: Sequence[GroupPlace], start: Callable[[str, int], Member]) -> None:
        self._places = {place.name: place for place in group}
        self._start = start
        self._attempts = {place.name: itertools.count(1) for place in group}
        self.workers: dict[str, Member] = {}
        self.started: list[Member] = []

    async def start_one(self, record: WorkerRecord, placement: Placement, incarnation: int) -> Member:
        await asyncio.sleep(0.2)
        again, attempt = self._places[record.name].again, next(self._attempts[record.name])
        if again == "never" or (again == "after failures" and attempt % 3):
            raise Unavailable(f"worker {record.name}: no route to it")
        return self.have(record.name, incarnation)

    def have(self, name: str, incarnation: int) -> Member:
        self.workers[name] = self._start(name, incarnation)
        self.started.append(self.workers[name])
        return self.workers[name]

    def compare(self, record: WorkerRecord, placement: Placement, inventory: Any) -> Comparison:
        return Comparison()

    async def bind_again(self, worker: RemoteWorker) -> None:
        await asyncio.sleep(0.1)
        if self._places[worker.name].again == "refused":
            raise AdmissionRefused([{"worker": worker.name, "field": "canary", "wanted": "a", "found": "b"}])

    async def drop(self, name: str) -> None:
        worker = self.workers.pop(name, None)
        if worker is not None:
            await worker.close()


def is_named(error: BaseException, names: Sequence[str]) -> bool:
    """Whether a failure is one of ours and says whom it is about."""
    return isinstance(error, PhalanxError) and any(f" {name}" in f" {error.message}" for name in names)
