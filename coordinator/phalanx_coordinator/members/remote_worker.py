"""One remote member over gRPC: every call has a deadline, every error becomes one of ours and names the worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from phalanx_proto.rpc import aio, grpc

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator.members.launch import WorkerProcess
from phalanx_coordinator.members.timing import SLOWEST_LINK, UNDER_WAY, Deadlines
from phalanx_proto import bulk, errors, tensors, wire
from phalanx_proto.errors import CorruptData, PhalanxError, WorkerLost
from phalanx_proto.experiment import Sizes
from phalanx_proto.handshake import PROTOCOL, Handshake
from phalanx_proto.receipt import Receipt
from phalanx_proto.schedule import Schedule
from phalanx_proto.v1 import experiment_pb2, worker_service_pb2_grpc
from phalanx_proto.v1 import worker_service_pb2 as messages

NEWS = 2.0
"""Seconds within which the news of a process's end follows the failure of its calls."""
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
)
HERE = (("grpc.keepalive_time_ms", 2000), ("grpc.keepalive_timeout_ms", 2500), ("grpc.http2.ping_timeout_ms", 2500))
"""A peer on this machine that is frozen is given up at once."""
FAR = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 120_000),
    ("grpc.http2.ping_timeout_ms", 120_000),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", UNDER_WAY),
)
"""On a thin line the answer to a ping waits behind megabytes, so there beats alone tell of life, and what may be under way to
us is bounded: as much as ssh itself keeps under way, so that a long line is no slower."""
Result = TypeVar("Result")


class RemoteWorker:
    """The calls of one daemon, for one run after another."""

    def __init__(self, process: WorkerProcess, token: str, run: str, incarnation: int, deadlines: Deadlines) -> None:
        self.name = process.name
        self.process = process
        self.resident: int | None = None
        self._deadlines = deadlines
        patience = HERE if process.record.here else FAR
        self._channel = aio.insecure_channel(f"unix:{process.socket}", options=(*OPTIONS, *patience))
        self._stub: Any = worker_service_pb2_grpc.WorkerServiceStub(self._channel)
        bulk.attach(self._stub, self._channel, messages.DESCRIPTOR.services_by_name["WorkerService"])
        self._token = token
        self._train: Any = None
        self.bind(run, incarnation)

    def bind(self, run: str, incarnation: int) -> None:
        """Make the calls that follow those of another run, as this incarnation in it."""
        self.incarnation = incarnation
        self._metadata = (
            ("phalanx-token", self._token), ("phalanx-run", run), ("phalanx-incarnation", str(self.incarnation)),
        )  # fmt: skip
        self.resident = None

    async def _answer(self, call: Awaitable[Result]) -> Result:
        try:
            return self._readable(await call)
        except aio.AioRpcError as error:
            raise await self._translated(error) from None

    def _readable(self, answer: Result) -> Result:
        """The answer; raises CorruptData for the None that gRPC gives for bytes that are no message."""
        if answer is None:
            raise CorruptData(f"worker {self.name} sent bytes that are no message; look at the link to it", worker=self.name)
        return answer

    async def _translated(self, error: Any) -> PhalanxError:
        """Our own error, with the worker's name; if the process went, what is known of its end."""
        found = errors.carried(error.trailing_metadata())
        if found is not None:
            return errors.told_by(f"worker {self.name}", found)
        # nothing of ours came with it, so the connection may have gone with the process, whatever the status says
        done, _ = await asyncio.wait({self.process.lost}, timeout=NEWS)
        if done and not self.process.lost.cancelled():
            return self.process.lost.result()
        kind = errors.BY_STATUS.get(error.code().name, PhalanxError)
        return kind(f"worker {self.name}: {error.code().name}: {error.details()}", worker=self.name)

    async def handshake(self, request: Mapping[str, Any]) -> Handshake:
        """Who is there."""
        message = messages.HandshakeRequest(protocol=PROTOCOL, **request)
        call = self._stub.Handshake(message, timeout=self._deadlines.rpc, metadata=self._metadata)
        return wire.handshake(await self._answer(call))

    async def put_blobs(self, blobs: Mapping[str, memoryview]) -> None:
        """Send what the worker lacks, by digest."""
        request = messages.MissingBlobsRequest(digests=list(blobs))
        call = self._stub.MissingBlobs(request, timeout=self._deadlines.rpc, metadata=self._metadata)
        for digest in (await self._answer(call)).digests:
            allowed = self._deadlines.opening + blobs[digest].nbytes / SLOWEST_LINK
            put = self._stub.PutBlob(_blob(digest, blobs[digest]), timeout=allowed, metadata=self._metadata)
            await self._answer(put)

    async def open(
        self, sizes: Sizes, schedule: Schedule, program: str, arrays: Mapping[str, NDArray[Any]],
        digests: Mapping[str, str], canary_rows: Sequence[int],
    ) -> str:  # fmt: skip
        """Bind the run and return the canary; the blobs are there."""
        fit = experiment_pb2.Fit(
            dtype=sizes.dtype, parameters=sizes.parameters, metrics=sizes.metrics, block=sizes.block,
            rows=schedule.rows, batch=schedule.batch, seed=schedule.seed,
        )  # fmt: skip
        request = messages.OpenRequest(
            fit=fit, program=program, x=wire.header(arrays["x"]), x_digest=digests["x"], y=wire.header(arrays["y"]),
            y_digest=digests["y"], parameters_digest=digests["initial"], canary_rows=canary_rows,
        )  # fmt: skip
        call = self._stub.Open(request, timeout=self._deadlines.opening, metadata=self._metadata)
        answer = await self._answer(call)
        self.resident = wire.receipt(answer.receipt).resident
        return str(answer.canary)

    async def ask(self, update: int, lo: int, hi: int, rows: NDArray[np.int32], parameters: NDArray[Any]) -> None:
        """Send one update's plan and parameters [P]."""
        if self._train is None:
            self._train = self._stub.Train(metadata=self._metadata)
        plan = messages.UpdatePlan(update=update, lo=lo, hi=hi, rows=rows.astype("<i4", copy=False).tobytes())
        request = messages.TrainRequest(plan=plan)
        try:
            for offset, piece in tensors.offsets(parameters):
                bulk.fill(request.parameters, offset, piece)
                await self._train.write((request, [piece]))
                request = messages.TrainRequest()
        except (aio.AioRpcError, asyncio.InvalidStateError):
            raise await self._stream_error(self._train) from None

    async def collect(self, update: int, reader: wire.NodeReader) -> Receipt:
        """Read the nodes of one update into the reader's buffers."""
        with self.process.expecting(reader.nbytes):
            return await self._collect(update, reader)

    async def _collect(self, update: int, reader: wire.NodeReader) -> Receipt:
        while True:
            try:
                answer = await self._train.read()
            except aio.AioRpcError as error:
                raise await self._translated(error) from None
            if answer is aio.EOF:
                raise await self._stream_error(self._train)
            response, payload = self._readable(answer)
            if response.update != update:
                raise CorruptData(f"worker {self.name} answered update {response.update} instead of {update}")
            data = bulk.pieces((part.chunk for part in response.parts), payload)
            for part, piece in zip(response.parts, data, strict=True):
                reader.add(part, piece)
            if response.HasField("receipt"):
                reader.finish()
                receipt = wire.receipt(response.receipt)
                self.resident = receipt.resident or self.resident
                return receipt

    async def _stream_error(self, stream: Any) -> PhalanxError:
        """Why the stream ended."""
        code, details = await stream.code(), await stream.details()
        metadata = await stream.trailing_metadata()
        error = aio.AioRpcError(code, aio.Metadata(), metadata or aio.Metadata(), details)
        if code == grpc.StatusCode.OK:
            return WorkerLost(f"worker {self.name} ended its stream early", worker=self.name)
        return await self._translated(error)

    def simulation(self) -> Any:
        """A new Simulate stream: ``await simulate_on(stream, ...)`` for each range."""
        return self._stub.Simulate(metadata=self._metadata)

    async def simulate_on(self, stream: Any, index: int, start: int, stop: int, seed: int) -> None:
        """Ask for one range."""
        try:
            await stream.write(messages.SimulateRequest(index=index, start=start, stop=stop, seed=seed))
        except (aio.AioRpcError, asyncio.InvalidStateError):
            raise await self._stream_error(stream) from None

    async def simulated(self, stream: Any, deadline: float) -> tuple[int, int, int, int, Receipt]:
        """The next answer, within ``deadline`` seconds: (index, start, stop, hits, receipt)."""
        try:
            async with asyncio.timeout(deadline):
                answer = await stream.read()
        except TimeoutError:
            raise WorkerLost(f"worker {self.name} did not answer within {deadline:.0f} s", worker=self.name) from None
        except aio.AioRpcError as error:
            raise await self._translated(error) from None
        if answer is aio.EOF:
            raise await self._stream_error(stream)
        self._readable(answer)
        receipt = wire.receipt(answer.receipt)
        self.resident = receipt.resident or self.resident
        return answer.index, answer.start, answer.stop, answer.hits, receipt

    def probing(self) -> Any:
        """A new Probe stream: ``await probe(stream, ...)`` for each request."""
        return self._stub.Probe(metadata=self._metadata)

    async def probe(self, stream: Any, data: bytes, answer: int | None) -> None:
        """Send bytes; with an ``answer``, also wait until that many have come back."""
        try:
            await stream.write(messages.ProbeRequest(data=data, answer=answer))
            complete = answer is None
            while not complete:
                response = await stream.read()
                if response is aio.EOF:
                    raise await self._stream_error(stream)
                complete = response.complete
        except aio.AioRpcError as error:
            raise await self._translated(error) from None
        except asyncio.InvalidStateError:
            raise await self._stream_error(stream) from None

    async def close_run(self) -> None:
        """Unbind the run; the daemon stays."""
        if self._train is not None:
            self._train.cancel()
            self._train = None
        await self._answer(self._stub.Close(messages.CloseRequest(), timeout=self._deadlines.opening, metadata=self._metadata))

    async def close(self) -> None:
        """Close the connection and end the daemon."""
        if self._train is not None:
            self._train.cancel()
        await self._channel.close()
        await self.process.close()


async def _blob(digest: str, data: memoryview) -> AsyncIterator[tuple[messages.PutBlobRequest, list[memoryview]]]:
    yield messages.PutBlobRequest(header=messages.BlobHeader(digest=digest, length=data.nbytes)), []
    offset = 0
    for piece in tensors.chunks(data):
        request = messages.PutBlobRequest()
        bulk.fill(request.chunk, offset, piece)
        yield request, [piece]
        offset += piece.nbytes
