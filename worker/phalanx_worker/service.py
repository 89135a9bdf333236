"""The gRPC edge of a worker. It checks who calls, turns messages into values, and leaves all else to ``WorkerState``.

The contract is told in ``worker_service.proto``.
"""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

from phalanx_proto.rpc import aio

import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from numpy.typing import NDArray

from phalanx_proto import bulk, wire
from phalanx_proto.answering import OPTIONS, Context, refuse, streaming, unary
from phalanx_proto.errors import InvalidRequest, PhalanxError, StaleIncarnation, Unauthorized, Unavailable, WrongRun
from phalanx_proto.experiment import DType, Sizes
from phalanx_proto.schedule import Schedule
from phalanx_proto.v1 import worker_service_pb2 as messages
from phalanx_proto.v1 import worker_service_pb2_grpc
from phalanx_worker.probe import Probe
from phalanx_worker.state import ArrayType, RunOpening, WorkerState

STREAMS = (("grpc.max_concurrent_streams", 64),)


class WorkerServicer(worker_service_pb2_grpc.WorkerServiceServicer):
    """The calls of one worker."""

    def __init__(self, state: WorkerState, token: str) -> None:
        self._state, self._token = state, token
        self._run: tuple[str, int] | None = None
        self._stream: object = None
        self._probe: Probe | None = None

    def authorize(self, context: Context) -> dict[str, str]:
        """The call's metadata; raises Unauthorized without the right token."""
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        if not hmac.compare_digest(metadata.get("phalanx-token", "").encode(), self._token.encode()):
            raise Unauthorized("the token is missing or wrong; only the coordinator that started this worker can use it")
        return metadata

    def _caller(self, context: Context) -> tuple[str, int]:
        metadata = dict(context.invocation_metadata())
        run, incarnation = str(metadata.get("phalanx-run", "")), str(metadata.get("phalanx-incarnation", ""))
        if not run or not incarnation.isdigit():
            raise InvalidRequest("the call names no run and incarnation (metadata phalanx-run, phalanx-incarnation)")
        return run, int(incarnation)

    def _check_run(self, context: Context) -> None:
        run, incarnation = self._caller(context)
        if self._run is None:
            raise WrongRun(f"no run is open here; open {run!r} first")
        if run != self._run[0]:
            raise WrongRun(f"this worker serves run {self._run[0]!r}, not {run!r}")
        if incarnation != self._run[1]:
            raise StaleIncarnation(f"this worker is incarnation {self._run[1]} of the run, not {incarnation}")

    @unary
    async def Handshake(self, request: messages.HandshakeRequest, context: Context) -> messages.HandshakeResponse:
        """Report; the coordinator decides."""
        return wire.handshake_response(self._state.handshake())

    @unary
    async def MissingBlobs(self, request: messages.MissingBlobsRequest, context: Context) -> messages.MissingBlobsResponse:
        """Which of the digests are not here."""
        return messages.MissingBlobsResponse(digests=self._state.blobs.missing(request.digests))

    @unary
    async def PutBlob(  # type: ignore[override]  # its messages come with their payload: see bulk
        self, requests: AsyncIterator[tuple[messages.PutBlobRequest, memoryview]], context: Context
    ) -> messages.PutBlobResponse:
        """Store one blob."""
        arrival = None
        kept = False
        try:
            async for request, payload in requests:
                if request.WhichOneof("part") == "header" and arrival is None:
                    arrival = self._state.blobs.receive(request.header.digest, request.header.length)
                elif request.WhichOneof("part") == "chunk" and arrival is not None:
                    (data,) = bulk.pieces([request.chunk], payload)
                    arrival.assembler.add(request.chunk.offset, data, request.chunk.checksum)
                else:
                    raise InvalidRequest("a blob is one header and then its chunks")
            if arrival is None:
                raise InvalidRequest("a blob without a header")
            kept = self._state.blobs.keep(arrival)
            return messages.PutBlobResponse(stored=kept)
        finally:
            if arrival is not None and not kept:
                arrival.abandon()

    @unary
    async def Open(self, request: messages.OpenRequest, context: Context) -> messages.OpenResponse:
        """Bind a run."""
        run, incarnation = self._caller(context)
        if self._run is not None and self._run[0] == run and incarnation < self._run[1]:
            raise StaleIncarnation(f"this worker is incarnation {self._run[1]} of the run, not {incarnation}")
        self._run = self._stream = None
        canary, cost = await self._state.open(run_opening(request))
        self._run = (run, incarnation)
        return messages.OpenResponse(canary=canary, receipt=wire.receipt_message(cost))

    @streaming
    async def Train(  # type: ignore[override]
        self, requests: AsyncIterator[tuple[messages.TrainRequest, memoryview]], context: Context
    ) -> AsyncIterator[tuple[messages.TrainResponse, list[memoryview]]]:
        """Updates in lockstep."""
        self._check_run(context)
        stream = self._stream = object()
        plan, parameters = None, None
        async for request, payload in requests:
            if self._stream is not stream:
                raise StaleIncarnation("a newer stream or run has taken the place of this one")
            if request.HasField("plan"):
                if plan is not None:
                    raise InvalidRequest(f"the parameters of update {plan.update} are not complete")
                plan, parameters = request.plan, self._state.assembler(request.plan.update)
            if plan is None or parameters is None:
                raise InvalidRequest("parameters came without the plan of their update")
            if request.HasField("parameters"):
                (data,) = bulk.pieces([request.parameters], payload)
                parameters.add(request.parameters.offset, data, request.parameters.checksum)
            if parameters.complete:
                nodes, cost = await self._state.nodes(plan.update, plan.lo, plan.hi, row_ids(plan.rows))
                for response in wire.node_messages(plan.update, nodes, cost):
                    yield response
                plan = None

    @streaming
    async def Simulate(
        self, requests: AsyncIterator[messages.SimulateRequest], context: Context
    ) -> AsyncIterator[messages.SimulateResponse]:
        """Ranges of a simulation."""
        async for request in requests:
            hits, cost = await self._state.simulate(request.start, request.stop, request.seed)
            yield messages.SimulateResponse(
                index=request.index, start=request.start, stop=request.stop, hits=hits,
                receipt=wire.receipt_message(cost),
            )  # fmt: skip

    @streaming
    async def Probe(
        self, requests: AsyncIterator[messages.ProbeRequest], context: Context
    ) -> AsyncIterator[messages.ProbeResponse]:
        """What the way to this worker carries."""
        probe = self._probe = Probe()
        async for request in requests:
            if self._probe is not probe:
                raise StaleIncarnation("a newer measurement has taken the place of this one")
            probe.take(len(request.data))
            if request.HasField("answer"):
                for piece, last in probe.answer(request.answer):
                    yield messages.ProbeResponse(received=probe.received, data=piece, complete=last)

    @unary
    async def Close(self, request: messages.CloseRequest, context: Context) -> messages.CloseResponse:
        """Unbind the run."""
        if self._run is not None:
            self._check_run(context)
            self._run = self._stream = None
            await self._state.close()
        return messages.CloseResponse()


def row_ids(data: bytes) -> NDArray[np.int32]:
    """The row ids of a plan."""
    if len(data) % 4:
        raise InvalidRequest(f"row ids are int32, but {len(data)} bytes of them came")
    return np.frombuffer(data, "<i4")


def run_opening(request: messages.OpenRequest) -> RunOpening:
    """The value of an ``Open`` message."""
    fit = request.fit
    sizes = Sizes(
        dtype=cast(DType, fit.dtype), parameters=fit.parameters, metrics=fit.metrics, outputs=0, block=fit.block,
        score_block=0,
    )  # fmt: skip
    schedule = Schedule(rows=fit.rows, batch=fit.batch, block=fit.block, epochs=1, seed=fit.seed)
    return RunOpening(
        sizes=sizes,
        schedule=schedule,
        program=request.program,
        x=ArrayType(dtype=request.x.dtype, shape=tuple(request.x.shape)),
        x_digest=request.x_digest,
        y=ArrayType(dtype=request.y.dtype, shape=tuple(request.y.shape)),
        y_digest=request.y_digest,
        parameters_digest=request.parameters_digest,
        canary_rows=tuple(request.canary_rows),
    )


AsyncHealth: Any = health.aio.HealthServicer  # type: ignore[attr-defined]


class GuardedHealth(AsyncHealth):  # type: ignore[misc]
    """Standard health, for those who know the token."""

    def __init__(self, authorize: Callable[[Context], Any]) -> None:
        super().__init__()
        self._authorize = authorize

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """The state of one service."""
        await self._guard(context)
        return await super().Check(request, context)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """The state of one service, as it changes."""
        await self._guard(context)
        await super().Watch(request, context)

    async def _guard(self, context: Context) -> None:
        try:
            self._authorize(context)
        except PhalanxError as error:
            await refuse(context, error)


async def start_server(state: WorkerState, token: str, address: str) -> Callable[[], Awaitable[None]]:
    """Serve on ``unix:PATH``; returns what stops the server. The umask must keep others out before this is called."""
    server = aio.server(options=(*OPTIONS, *STREAMS))
    servicer = WorkerServicer(state, token)
    worker_service_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server)
    bulk.serve(server, servicer, messages.DESCRIPTOR.services_by_name["WorkerService"])
    status = GuardedHealth(servicer.authorize)
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    for name in ("", "phalanx_proto.v1.WorkerService"):
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    try:
        server.add_insecure_port(address)
    except RuntimeError:  # grpc's own, which says less
        raise Unavailable("its socket cannot be made in its directory; is there room on that disk?") from None
    await server.start()

    async def stop() -> None:
        await server.stop(grace=None)

    return stop
