"""The gRPC edge of a coordinator service: messages into values and back; all else is the keeper's.

The contract is told in ``coordinator_service.proto``.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from phalanx_proto.rpc import aio

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from phalanx_coordinator.jobs.keeper import JobKeeper, require_fit
from phalanx_coordinator.service.array_store import ArrayStore
from phalanx_coordinator.session import Coordinator
from phalanx_proto import arrays, bulk, job_files, job_wire, outcomes, requests, tensors, wire
from phalanx_proto.answering import OPTIONS, Context, streaming, unary
from phalanx_proto.errors import InvalidJob, InvalidRequest
from phalanx_proto.experiment import Rows
from phalanx_proto.job_status import JobStatus
from phalanx_proto.jobs import FitOutcome, FittedParts, SimulationRequest
from phalanx_proto.v1 import coordinator_service_pb2 as messages
from phalanx_proto.v1 import coordinator_service_pb2_grpc as stubs

NAME = "phalanx_proto.v1.CoordinatorService"
WATCH_EVERY = 0.1
"""Seconds between two looks at a job that is watched."""
LOG_PIECE = 1 << 20
STREAMS = (("grpc.max_concurrent_streams", 256),)


class CoordinatorServicer(stubs.CoordinatorServiceServicer):
    """The calls of one coordinator service."""

    def __init__(self, keeper: JobKeeper, store: ArrayStore, coordinator: Coordinator) -> None:
        self._keeper, self._store, self._coordinator = keeper, store, coordinator

    def authorize(self, context: Context) -> None:
        """Whoever can open the socket is the user whose service this is."""

    @unary
    async def MissingArrays(self, request: messages.MissingArraysRequest, context: Context) -> messages.MissingArraysResponse:
        """Which of the digests are not here."""
        return messages.MissingArraysResponse(digests=self._store.missing(request.digests))

    @unary
    async def PutArray(  # type: ignore[override]  # its messages come with their payload: see bulk
        self, requests: AsyncIterator[tuple[messages.PutArrayRequest, memoryview]], context: Context
    ) -> messages.PutArrayResponse:
        """Store one array."""
        arrival = None
        try:
            async for request, payload in requests:
                if request.WhichOneof("part") == "header" and arrival is None:
                    arrival = self._store.receive(request.header.digest, request.header.length)
                elif request.WhichOneof("part") == "chunk" and arrival is not None:
                    (data,) = bulk.pieces([request.chunk], payload)
                    arrival.add(request.chunk.offset, data, request.chunk.checksum)
                else:
                    raise InvalidRequest("an array is one header and then its chunks")
            if arrival is None:
                raise InvalidRequest("an array without a header")
            return messages.PutArrayResponse(stored=await asyncio.to_thread(self._store.keep, arrival))
        finally:
            if arrival is not None:
                arrival.abandon()

    @unary
    async def SubmitFit(self, request: messages.SubmitFitRequest, context: Context) -> messages.SubmitFitResponse:
        """Queue a fit."""
        wanted = require_fit(await asyncio.to_thread(self._request, request.document))
        return messages.SubmitFitResponse(status=job_wire.status_message(await self._keeper.submit(wanted)))

    @unary
    async def SubmitSimulation(
        self, request: messages.SubmitSimulationRequest, context: Context
    ) -> messages.SubmitSimulationResponse:
        """Queue a simulation."""
        wanted = await asyncio.to_thread(self._request, request.document)
        if not isinstance(wanted, SimulationRequest):
            raise InvalidRequest("SubmitSimulation takes a simulation; SubmitFit takes a fit")
        return messages.SubmitSimulationResponse(status=job_wire.status_message(await self._keeper.submit(wanted)))

    def _request(self, text: str) -> requests.Request:
        document = _document(text, "request")
        blobs = {entry.sha256: self._store.read(entry.sha256) for entry in arrays.entries(document).values()}
        return requests.from_document(document, arrays.from_blobs(document, blobs))

    @unary
    async def ListJobs(self, request: messages.ListJobsRequest, context: Context) -> messages.ListJobsResponse:
        """Every job."""
        found = await asyncio.to_thread(self._keeper.jobs)
        return messages.ListJobsResponse(jobs=[job_wire.status_message(status) for status in found])

    @unary
    async def GetStatus(self, request: messages.GetStatusRequest, context: Context) -> messages.GetStatusResponse:
        """One job now."""
        return messages.GetStatusResponse(status=job_wire.status_message(self._keeper.status(request.job)))

    @streaming
    async def Watch(self, request: messages.WatchRequest, context: Context) -> AsyncIterator[messages.WatchResponse]:
        """A job as it goes on: the events that are there, then its status, and what is new of both."""
        path, number = self._keeper.path(request.job), request.after_event
        last: JobStatus | None = None
        read = 0
        while True:
            status = self._keeper.status(request.job)
            if (size := _size(path / job_files.EVENTS)) != read:
                read = size
                for event in job_files.read_events(path, number):
                    yield messages.WatchResponse(event=job_wire.event_message(number, event))
                    number += 1
            if status != last:
                last = status
                yield messages.WatchResponse(status=job_wire.status_message(status))
            if status.ended or status.state == "COORDINATOR_OFFLINE":
                return
            await asyncio.sleep(WATCH_EVERY)

    @streaming
    async def GetLogs(self, request: messages.GetLogsRequest, context: Context) -> AsyncIterator[messages.GetLogsResponse]:
        """The log, in pieces."""
        path = self._keeper.path(request.job) / job_files.LOG
        if not path.exists() or path.stat().st_size <= request.offset:
            return
        with path.open("rb") as file:
            file.seek(request.offset)
            while piece := file.read(LOG_PIECE):
                yield messages.GetLogsResponse(data=piece)

    @unary
    async def Cancel(self, request: messages.CancelRequest, context: Context) -> messages.CancelResponse:
        """End a job."""
        return messages.CancelResponse(status=job_wire.status_message(await self._keeper.cancel(request.job)))

    @unary
    async def Resume(self, request: messages.ResumeRequest, context: Context) -> messages.ResumeResponse:
        """Queue a job again."""
        place = requests.execution_from_document(_document(request.execution, "execution")) if request.execution else None
        return messages.ResumeResponse(status=job_wire.status_message(await self._keeper.resume(request.job, place)))

    @streaming
    async def GetResult(  # type: ignore[override]
        self, request: messages.GetResultRequest, context: Context
    ) -> AsyncIterator[tuple[messages.GetResultResponse, list[memoryview]]]:
        """The outcome of a complete job."""
        document, held = outcomes.to_document(await self._outcome(request.job))
        yield messages.GetResultResponse(document=json.dumps(document)), []
        for name in sorted(held):
            for offset, piece in tensors.offsets(held[name]):
                response = messages.GetResultResponse()
                response.array.name = name
                bulk.fill(response.array.chunk, offset, piece)
                yield response, [piece]

    async def _outcome(self, job: str) -> outcomes.Outcome:
        return await asyncio.to_thread(job_files.read_outcome, self._keeper.path(job))

    async def _fitted(self, job: str) -> FittedParts:
        outcome = await self._outcome(job)
        if not isinstance(outcome, FitOutcome):
            raise InvalidJob(f"job {job} is a simulation, which has no fitted model")
        return outcome.fitted

    def _array(self, reference: messages.ArrayReference) -> Any:
        header = reference.header
        return tensors.decode(header.dtype, list(header.shape), self._store.read(reference.digest))

    @unary
    async def Evaluate(self, request: messages.EvaluateRequest, context: Context) -> messages.EvaluateResponse:
        """Loss and accuracy over rows."""
        fitted = await self._fitted(request.job)
        x, y = self._array(request.x), self._array(request.y)
        rows = Rows(x=x, y=y, role=request.role, fingerprint="", source="")  # type: ignore[arg-type]
        score = await self._coordinator.evaluate(fitted, rows)
        return messages.EvaluateResponse(loss=score.loss, rows=score.rows, accuracy=score.accuracy)

    @streaming
    async def Predict(  # type: ignore[override]
        self, request: messages.PredictRequest, context: Context
    ) -> AsyncIterator[tuple[messages.PredictResponse, list[memoryview]]]:
        """Outputs for features."""
        outputs = await self._coordinator.predict(await self._fitted(request.job), self._array(request.x))
        yield messages.PredictResponse(header=wire.header(outputs)), []
        for offset, piece in tensors.offsets(outputs):
            response = messages.PredictResponse()
            bulk.fill(response.chunk, offset, piece)
            yield response, [piece]

    @unary
    async def GetInventory(self, request: messages.GetInventoryRequest, context: Context) -> messages.GetInventoryResponse:
        """What this machine has."""
        machine, scheduler = await self._coordinator.inventory(), self._keeper.scheduler
        return messages.GetInventoryResponse(
            document=json.dumps(machine.to_dict()), summary=machine.summary(), slots=scheduler.slots,
            slots_in_use=scheduler.in_use,
        )  # fmt: skip


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _document(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest(f"the {what} is not a JSON document")
    return found


async def start_server(servicer: CoordinatorServicer, address: str) -> Callable[[], Awaitable[None]]:
    """Serve on ``unix:PATH``; returns what stops the server. The umask must keep others out before this is called."""
    server = aio.server(options=(*OPTIONS, *STREAMS))
    stubs.add_CoordinatorServiceServicer_to_server(servicer, server)
    bulk.serve(server, servicer, messages.DESCRIPTOR.services_by_name["CoordinatorService"])
    status: Any = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    for name in ("", NAME):
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    server.add_insecure_port(address)
    await server.start()

    async def stop() -> None:
        await server.stop(grace=None)

    return stop
