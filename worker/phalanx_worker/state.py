"""What a worker's daemon holds and does, without the network: blobs, one open run, engines. Neither gRPC nor JAX here.

The first engine lives in this process (``host``); further slots are followers beside it. Work that takes long runs in a
thread so that other calls are answered; work that is over in a moment runs at once, since a hand-over costs more.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import tensors
from phalanx_proto.errors import EngineFailed, InvalidRequest, PhalanxError, WrongRun
from phalanx_proto.experiment import Sizes
from phalanx_proto.handshake import Handshake
from phalanx_proto.receipt import Receipt
from phalanx_proto.schedule import Schedule
from phalanx_worker import mailbox
from phalanx_worker.arena import Arena
from phalanx_worker.blobs import BlobStore
from phalanx_worker.opening import FitOpening
from phalanx_worker.pool import Followers
from phalanx_worker.watchdog import Watchdog

Result = TypeVar("Result")
Nodes = dict[tuple[int, int], NDArray[np.float64]]

INLINE = 5e-3
"""Seconds: what took less the last time runs on the loop."""
RESIDENT_EVERY = 0.5
"""Seconds between measurements of resident memory."""
MAX_SAMPLES = 1 << 40
"""Samples of one range."""


class EngineHost(Protocol):
    """The part of ``host.Host`` that the daemon uses."""

    def open_member(self, opening: FitOpening, work: Arena, data: Sequence[Arena]) -> None:
        """Bind a fit with this engine as leader."""

    def canary(self, rows: NDArray[np.int32], parameters: NDArray[Any]) -> str:
        """Digest of the node of block 0 of update 0."""

    def member_nodes(self, update: int, lo: int, hi: int, rows: NDArray[np.int32]) -> tuple[Nodes, Receipt]:
        """Nodes of a range; the parameters lie in the work arena."""

    def simulate(self, start: int, stop: int, seed: int) -> tuple[int, int]:
        """(hits, nanoseconds)."""

    def close_member(self) -> None:
        """Unbind the fit."""

    def resident(self) -> int:
        """Bytes."""


class ProgramInspector(Protocol):
    """Lets programs through, or raises ProgramRefused."""

    async def admit(self, artifact: bytes, sizes: Sizes, x: "ArrayType", y: "ArrayType") -> None:
        """Inspect a gradient program in a disposable process."""


@dataclass(frozen=True, kw_only=True)
class ArrayType:
    """Dtype and shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RunOpening:
    """What ``Open`` asks for."""

    sizes: Sizes
    schedule: Schedule
    program: str
    x: ArrayType
    x_digest: str
    y: ArrayType
    y_digest: str
    parameters_digest: str
    canary_rows: tuple[int, ...]

    def check(self) -> None:
        """Sizes that cannot be: InvalidRequest naming all of them."""
        rows, batch = self.schedule.rows, self.schedule.batch
        problems = [
            text
            for wrong, text in (
                (self.sizes.dtype not in ("float32", "float64"), f"dtype {self.sizes.dtype!r}"),
                (batch < 1, f"a batch of {batch} rows"),
                (not 1 <= self.sizes.block <= max(batch, 1), f"a block of {self.sizes.block} rows"),
                (self.sizes.parameters < 1, f"{self.sizes.parameters} parameters"),
                (not 1 <= rows < 1 << 31, f"{rows} rows"),
                (
                    self.x.dtype != self.sizes.dtype or len(self.x.shape) != 2,
                    f"x is {self.x.dtype}{list(self.x.shape)}",
                ),
                (self.x.shape[:1] != (rows,), f"x has shape {list(self.x.shape)} for {rows} rows"),
                (self.y.shape[:1] != (rows,), f"y has shape {list(self.y.shape)} for {rows} rows"),
                (not self.canary_rows or len(self.canary_rows) > self.sizes.block, "the canary's rows are not a block"),
                (any(row >= rows for row in self.canary_rows), "a canary row lies outside the data"),
            )
            if wrong
        ]
        if problems:
            raise InvalidRequest("this run cannot be opened: " + "; ".join(problems))


class WorkerState:
    """Blobs, one open run and the engines of a worker."""

    def __init__(
        self, *, host: EngineHost, followers: Followers, blobs: BlobStore, inspector: ProgramInspector,
        watchdog: Watchdog, handshake: Callable[[], Handshake],
    ) -> None:  # fmt: skip
        self.blobs = blobs
        self.handshake = handshake
        self._host, self._followers, self._inspector, self._watchdog = host, followers, inspector, watchdog
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._busy = asyncio.Lock()
        self._work: Arena | None = None
        self._sizes: Sizes | None = None
        self._took = {"nodes": float("inf"), "simulate": float("inf")}
        self._resident_at = 0.0

    async def _run(self, kind: str, work: Callable[[], Result]) -> Result:
        """Run engine work under the watchdog, on the loop if the last of its kind was short."""
        if self._took.get(kind, float("inf")) >= INLINE:
            # A caller may go away; what the thread does goes on, and stays watched.
            return await asyncio.shield(asyncio.create_task(self._in_thread(kind, work)))
        async with self._busy:
            with self._watchdog.watching(kind):
                return self._timed(kind, work)

    async def _in_thread(self, kind: str, work: Callable[[], Result]) -> Result:
        async with self._busy:
            with self._watchdog.watching(kind):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._timed, kind, work)

    def _timed(self, kind: str, work: Callable[[], Result]) -> Result:
        """The work's result; raises EngineFailed for what JAX raises."""
        started = time.monotonic()
        try:
            return work()
        except PhalanxError:
            raise
        except Exception as error:
            raise EngineFailed(f"{kind}: {type(error).__name__}: {error}") from error
        finally:
            if kind in self._took:
                self._took[kind] = time.monotonic() - started

    def _measured_resident(self) -> int | None:
        now = time.monotonic()
        if now - self._resident_at < RESIDENT_EVERY:
            return None
        self._resident_at = now
        return self._host.resident()

    async def open(self, run: RunOpening) -> tuple[str, Receipt]:
        """Inspect, compile and bind; returns the canary."""
        started = time.perf_counter_ns()
        await self.close()
        run.check()
        artifact = self.blobs.bytes(run.program)
        with self._arrays(run) as (x, y, initial):
            await self._inspector.admit(artifact, run.sizes, run.x, run.y)
            opening = FitOpening(
                sizes=run.sizes, schedule=run.schedule, artifacts={"gradient": artifact},
                slots=1 + len(self._followers.engines), weights=(), held=1,
            )  # fmt: skip
            canary = await self._bind(opening, [x, y], initial["initial"], np.array(run.canary_rows, np.int32))
        self._took["nodes"] = float("inf")
        return canary, Receipt(total_ns=time.perf_counter_ns() - started, resident=self._host.resident())

    @contextlib.contextmanager
    def _arrays(self, run: RunOpening) -> Iterator[list[Arena]]:
        """Arenas with x, y and the initial parameters, from their blobs."""
        parameters = ArrayType(dtype=run.sizes.dtype, shape=(run.sizes.parameters,))
        wanted = (("x", run.x_digest, run.x), ("y", run.y_digest, run.y), ("initial", run.parameters_digest, parameters))
        with contextlib.ExitStack() as stack:
            found = []
            for name, digest, kind in wanted:
                found.append(self.blobs.array(digest, name, kind.dtype, kind.shape))
                stack.callback(found[-1].close)
            yield found

    async def _bind(self, opening: FitOpening, data: Sequence[Arena], initial: NDArray[Any], rows: NDArray[np.int32]) -> str:
        """Bind the fit in every engine and return the canary; whatever fails, no engine stays in it."""
        work = self._work = opening.work_arena()
        try:
            await side_by_side(
                self._followers.open(opening, work, data),
                self._run("open", lambda: self._host.open_member(opening, work, data)),
            )
            canary = await self._run("open", lambda: self._host.canary(rows, initial))
        except BaseException:
            await self.close()
            raise
        self._sizes = opening.sizes
        return canary

    def assembler(self, update: int) -> tensors.Assembler:
        """Room for the parameters of one update, where the engines read them."""
        if self._work is None or self._sizes is None:
            raise WrongRun("no run is open here; open it first")
        view = self._work["parameters"][update & 1][: self._sizes.parameters].view(np.uint8)
        return tensors.Assembler(view.nbytes, out=view.data)

    async def nodes(self, update: int, lo: int, hi: int, rows: NDArray[np.int32]) -> tuple[Nodes, Receipt]:
        """The maximal nodes of a range, with the parameters that were assembled for this update."""
        nodes, receipt = await self._run("nodes", lambda: self._host.member_nodes(update, lo, hi, rows))
        resident = self._measured_resident()
        return nodes, Receipt(**{**receipt.__dict__, "resident": resident})

    async def simulate(self, start: int, stop: int, seed: int) -> tuple[int, Receipt]:
        """Hits among samples [start, stop), shared over the slots."""
        if not 0 <= start < stop or stop - start > MAX_SAMPLES or stop >= 1 << 63:
            raise InvalidRequest(f"samples [{start}, {stop}) are not a range of 1 to 2**40 samples")
        if self._work is not None:
            raise InvalidRequest("a fit is open on this worker; close it before simulating")
        slots = 1 + len(self._followers.engines)
        cuts = [start + (stop - start) * k // slots for k in range(slots + 1)]
        others = self._followers.simulate(cuts[1:], seed)
        own = self._run("simulate", lambda: self._host.simulate(cuts[0], cuts[1], seed) if cuts[1] > start else (0, 0))
        (hits, nanoseconds), more = await asyncio.gather(own, others)
        receipt = Receipt(rows=stop - start, compute_ns=nanoseconds, resident=self._measured_resident())
        return hits + sum(more), receipt

    async def close(self) -> None:
        """Unbind the run; the blobs stay."""
        if self._work is None:
            return
        await self._run("close", self._host.close_member)
        mailbox.let_go(self._work)  # the host knows of no fit where opening it failed
        await self._followers.released(deadline=60.0)
        self._work.close()
        self._work = self._sizes = None


async def side_by_side(*parts: Coroutine[Any, Any, Any]) -> None:
    """Await all of them to their ends, then raise the first failure."""
    ended = await asyncio.gather(*parts, return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, BaseException):
            raise outcome
