"""Every call to a coordinator service: a deadline, the errors of the family, and another try where that is harmless."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from phalanx_proto.rpc import grpc

from numpy.typing import NDArray

from phalanx_proto import arrays, bulk, errors, job_wire, tensors, wire
from phalanx_proto.arrays import Arrays
from phalanx_proto.errors import PhalanxError, Unavailable
from phalanx_proto.experiment import Rows
from phalanx_proto.job_status import JobStatus
from phalanx_proto.jobs import Event, Score
from phalanx_proto.v1 import coordinator_service_pb2 as messages
from phalanx_proto.v1 import coordinator_service_pb2_grpc as stubs

if TYPE_CHECKING:
    from phalanx.tunnel import Tunnel

SOON, LATER = 30.0, 600.0
"""Seconds for what is answered from memory and disk, and for what computes, copies or waits for an end."""
PATIENCE, RETRY = 30.0, 0.5
"""Seconds that a watch waits for a service that does not answer, as while it is started again; and between two tries."""
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.default_authority", "localhost"),
    ("grpc.initial_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
Result = TypeVar("Result")


class Calls:
    """The calls of one connection."""

    def __init__(self, socket: Path, tunnel: "Tunnel | None" = None) -> None:
        self._socket, self._tunnel = socket, tunnel
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=OPTIONS)
        self._stub: Any = stubs.CoordinatorServiceStub(self._channel)
        bulk.attach(self._stub, self._channel, messages.DESCRIPTOR.services_by_name["CoordinatorService"])

    def prove(self) -> None:
        """Raises ``Unavailable`` unless a service answers."""
        if self._tunnel is None and not self._socket.exists():
            raise Unavailable(f"no coordinator service listens on {self._socket}; start one with: phalanx serve")
        self._call("MissingArrays", messages.MissingArraysRequest())

    def _call(self, name: str, request: Any, deadline: float = SOON) -> Any:
        return self._guarded(lambda: getattr(self._stub, name)(request, timeout=deadline))

    def _guarded(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except grpc.RpcError as error:
            raise self._translated(error) from None

    def _translated(self, error: Any) -> PhalanxError:
        found = errors.carried(error.trailing_metadata())
        if found is not None:
            return found
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            lost = None if self._tunnel is None else self._tunnel.why_lost()
            return lost or Unavailable(
                f"no coordinator service answers on {self._socket} ({error.details()}); start one with: phalanx serve"
            )
        kind = errors.BY_STATUS.get(error.code().name, PhalanxError)
        return kind(f"the coordinator service: {error.code().name}: {error.details()}")

    def put(self, held: Arrays) -> None:
        """Send what the service lacks of these arrays."""
        blobs = arrays.as_blobs(held)
        missing = self._call("MissingArrays", messages.MissingArraysRequest(digests=list(blobs))).digests
        for digest in missing:
            pieces = _pieces(digest, blobs[digest])
            self._guarded(lambda pieces=pieces: self._stub.PutArray(pieces, timeout=LATER))  # type: ignore[misc]

    def submit(self, name: str, document: Mapping[str, Any]) -> JobStatus:
        """Queue a request."""
        kind = messages.SubmitFitRequest if name == "SubmitFit" else messages.SubmitSimulationRequest
        return job_wire.status(self._call(name, kind(document=json.dumps(document)), LATER).status)

    def jobs(self) -> list[JobStatus]:
        """Every job."""
        return [job_wire.status(found) for found in self._call("ListJobs", messages.ListJobsRequest()).jobs]

    def status(self, job: str) -> JobStatus:
        """One job now."""
        return job_wire.status(self._call("GetStatus", messages.GetStatusRequest(job=job)).status)

    def cancel(self, job: str) -> JobStatus:
        """End a job."""
        return job_wire.status(self._call("Cancel", messages.CancelRequest(job=job), LATER).status)

    def resume(self, job: str, execution: str) -> JobStatus:
        """Queue a job again."""
        return job_wire.status(self._call("Resume", messages.ResumeRequest(job=job, execution=execution), LATER).status)

    def watch(self, job: str) -> Iterator[JobStatus]:
        """Each status until the end; where the stream breaks it is taken up again, as long as there is a way to the service."""
        broken: float | None = None
        last = None
        while True:
            try:
                for status in self._statuses(job):
                    broken = None
                    if status != last:
                        last = status
                        yield status
                return
            except Unavailable:
                now = time.monotonic()
                broken = now if broken is None else broken
                if now - broken > PATIENCE or (self._tunnel is not None and self._tunnel.ended):
                    raise
                time.sleep(RETRY)

    def _statuses(self, job: str) -> Iterator[JobStatus]:
        stream = self._stub.Watch(messages.WatchRequest(job=job, after_event=(1 << 63)))
        try:
            for response in stream:
                if response.HasField("status"):
                    yield job_wire.status(response.status)
        except grpc.RpcError as error:
            raise self._translated(error) from None
        finally:
            stream.cancel()

    def events(self, job: str, after: int) -> list[Event]:
        """The events from number ``after`` on that are there now."""
        found: list[Event] = []
        stream = self._stub.Watch(messages.WatchRequest(job=job, after_event=after), timeout=SOON)
        try:
            for response in stream:
                if response.HasField("status"):  # it follows the events that are there
                    break
                found.append(job_wire.event(response.event))
        except grpc.RpcError as error:
            raise self._translated(error) from None
        finally:
            stream.cancel()
        return found

    def logs(self, job: str) -> bytes:
        """The whole log."""
        stream = self._stub.GetLogs(messages.GetLogsRequest(job=job), timeout=LATER)
        return self._guarded(lambda: b"".join(piece.data for piece in stream))

    def result(self, job: str) -> tuple[str, dict[str, bytes]]:
        """The outcome document, and the bytes of each of its arrays."""
        stream = self._stub.GetResult(messages.GetResultRequest(job=job), timeout=LATER)
        return self._guarded(lambda: _received(stream))

    def evaluate(self, job: str, rows: Rows) -> Score:
        """Loss and accuracy of a job's model."""
        self.put({"x": rows.x, "y": rows.y})
        request = messages.EvaluateRequest(job=job, x=_reference(rows.x), y=_reference(rows.y), role=rows.role)
        answer = self._call("Evaluate", request, LATER)
        return Score(loss=answer.loss, rows=answer.rows, accuracy=answer.accuracy if answer.HasField("accuracy") else None)

    def predict(self, job: str, x: NDArray[Any]) -> NDArray[Any]:
        """Outputs of a job's model."""
        self.put({"x": x})
        stream = self._stub.Predict(messages.PredictRequest(job=job, x=_reference(x)), timeout=LATER)
        return self._guarded(lambda: _outputs(stream))

    def inventory(self) -> dict[str, Any]:
        """What the service's machine has."""
        answer = self._call("GetInventory", messages.GetInventoryRequest(), LATER)
        return {**json.loads(answer.document), "slots": answer.slots, "slots_in_use": answer.slots_in_use}

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


def _reference(array: NDArray[Any]) -> messages.ArrayReference:
    return messages.ArrayReference(header=wire.header(array), digest=tensors.digest_bytes(tensors.encode(array)[2]))


def _pieces(digest: str, data: memoryview) -> Iterator[tuple[messages.PutArrayRequest, list[memoryview]]]:
    yield messages.PutArrayRequest(header=messages.ArrayHeader(digest=digest, length=data.nbytes)), []
    offset = 0
    for piece in tensors.chunks(data):
        request = messages.PutArrayRequest()
        bulk.fill(request.chunk, offset, piece)
        yield request, [piece]
        offset += piece.nbytes


def _received(stream: Any) -> tuple[str, dict[str, bytes]]:
    document = next(stream)[0].document
    assemblers = {
        name: tensors.Assembler(tensors.byte_size(entry.dtype, entry.shape))
        for name, entry in arrays.entries(json.loads(document)).items()
    }
    for response, payload in stream:
        part = response.array
        (data,) = bulk.pieces([part.chunk], payload)
        assemblers[part.name].add(part.chunk.offset, data, part.chunk.checksum)
    return document, {name: bytes(assembler.finish()) for name, assembler in assemblers.items()}


def _outputs(stream: Any) -> NDArray[Any]:
    header = next(stream)[0].header
    assembler = tensors.Assembler(tensors.byte_size(header.dtype, list(header.shape)))
    for response, payload in stream:
        (data,) = bulk.pieces([response.chunk], payload)
        assembler.add(response.chunk.offset, data, response.chunk.checksum)
    return tensors.decode(header.dtype, list(header.shape), assembler.finish())
