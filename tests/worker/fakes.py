"""A worker's state among fakes: what it asks of engines, watchdog and inspector, and what they may do to it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import tensors
from phalanx_proto.experiment import Sizes
from phalanx_proto.handshake import Handshake
from phalanx_proto.receipt import Receipt
from phalanx_worker import mailbox
from phalanx_worker.blobs import BlobStore
from phalanx_worker.state import ArrayType, RunOpening, WorkerState
from tests.worker import builders
from tests.worker.builders import Problem


class Host:
    """Stands for the engine of this process; fails and blocks where a test says so."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.threads: list[bool] = []
        self.failing: dict[str, Exception] = {}
        self.gate: threading.Event | None = None
        self.entered = threading.Event()

    def _enter(self, name: str) -> None:
        self.calls.append(name)
        self.threads.append(threading.current_thread() is not threading.main_thread())
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(30)
        if name in self.failing:
            raise self.failing[name]

    def open_member(self, opening: Any, work: Any, data: Any) -> None:
        self._enter("open")
        self.x = data[0]["x"].copy()

    def canary(self, rows: NDArray[np.int32], parameters: NDArray[Any]) -> str:
        self._enter("canary")
        self.initial = parameters.copy()
        return f"canary of {rows.tolist()}"

    def member_nodes(self, update: int, lo: int, hi: int, rows: NDArray[np.int32]) -> tuple[builders.Nodes, Receipt]:
        self._enter("nodes")
        return {(lo, hi): np.zeros(3)}, Receipt(rows=len(rows), compute_ns=5)

    def simulate(self, start: int, stop: int, seed: int) -> tuple[int, int]:
        self._enter("simulate")
        return stop - start, 7

    def close_member(self) -> None:
        self._enter("close")

    def resident(self) -> int:
        return 1 << 20


class Followers:
    """Stands for engine processes; like them, they leave a fit only when their mailbox says so."""

    def __init__(self, slots: int = 0) -> None:
        self.engines = [object()] * slots
        self.work: Any = None
        self.released_as: list[int] = []
        self.failing: Exception | None = None
        self.ranges: list[tuple[int, int]] = []

    async def open(self, opening: Any, work: Any, data: Any) -> None:
        await asyncio.sleep(0)
        if self.failing:
            raise self.failing
        self.work = work

    async def released(self, deadline: float) -> None:
        if self.work is not None:
            self.released_as = self.work["mailboxes"][1:, mailbox.GO].tolist()
        self.work = None

    async def simulate(self, cuts: list[int], seed: int) -> list[int]:
        self.ranges = list(pairwise(cuts))
        return [hi - lo for lo, hi in self.ranges]


class Watch:
    """Stands for the watchdog."""

    def __init__(self) -> None:
        self.watched: list[str] = []
        self.now: str | None = None

    @contextmanager
    def watching(self, what: str) -> Iterator[None]:
        assert self.now is None, "one piece of work at a time"
        self.now = what
        self.watched.append(what)
        try:
            yield
        finally:
            self.now = None


class Inspector:
    """Admits everything, unless told otherwise."""

    def __init__(self) -> None:
        self.refusal: Exception | None = None

    async def admit(self, artifact: bytes, sizes: Sizes, x: ArrayType, y: ArrayType) -> None:
        if self.refusal:
            raise self.refusal


class Bench:
    """A state among fakes, and a run that it can open."""

    def __init__(self, slots: int = 1) -> None:
        self.host, self.followers, self.watch, self.inspector = Host(), Followers(slots - 1), Watch(), Inspector()
        self.blobs = BlobStore(limit=1 << 20)
        handshake: Any = Handshake
        self.state = WorkerState(
            host=self.host, followers=self.followers, blobs=self.blobs, inspector=self.inspector, watchdog=self.watch,  # type: ignore[arg-type]
            handshake=handshake,
        )  # fmt: skip

    def put(self, data: bytes) -> str:
        digest = tensors.digest_bytes(data)
        arrival = self.blobs.receive(digest, len(data))
        arrival.assembler.add(0, data, tensors.checksum(data))
        if not self.blobs.keep(arrival):
            arrival.abandon()
        return digest

    def run(self, problem: Problem) -> RunOpening:
        return RunOpening(
            sizes=problem.sizes, schedule=problem.schedule, program=self.put(b"program"),
            x=ArrayType(dtype=problem.x.dtype.name, shape=problem.x.shape), x_digest=self.put(problem.x.tobytes()),
            y=ArrayType(dtype="int32", shape=problem.y.shape), y_digest=self.put(problem.y.tobytes()),
            parameters_digest=self.put(problem.initial.tobytes()), canary_rows=(3, 1, 2, 0),
        )  # fmt: skip
