"""A real daemon process, and a client for it written from ``worker_service.proto`` alone."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import grpc
import numpy as np
import psutil
import pytest
import xxhash
from grpc_health.v1 import health_pb2_grpc
from numpy.typing import NDArray

from phalanx_proto import errors, tensors
from phalanx_proto.errors import PhalanxError
from phalanx_proto.v1 import experiment_pb2, tensor_pb2, worker_service_pb2_grpc
from phalanx_proto.v1 import worker_service_pb2 as messages
from tests.worker import builders
from tests.worker.builders import Nodes, Problem

TOKEN = "a token of sufficient length"
PATIENCE = 120.0
"""Seconds that anything here may take."""
CHUNK = 1 << 20
Metadata = tuple[tuple[str, str], ...]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def metadata(run: str = "run-1", incarnation: int | str = 1, token: str | None = TOKEN) -> Metadata:
    head = () if token is None else (("phalanx-token", token),)
    return (*head, ("phalanx-run", run), ("phalanx-incarnation", str(incarnation)))


def chunks(data: bytes, size: int = CHUNK) -> list[tuple[tensor_pb2.Chunk, bytes]]:
    return [
        (tensor_pb2.Chunk(offset=start, length=len(piece), checksum=xxhash.xxh3_64_intdigest(piece)), piece)
        for start in range(0, len(data), size)
        for piece in [data[start : start + size]]
    ]


def blob(data: bytes, digest: str | None = None) -> list[messages.PutBlobRequest]:
    header = messages.BlobHeader(digest=digest or tensors.digest_bytes(data), length=len(data))
    parts = [messages.PutBlobRequest(payload=piece, chunk=chunk) for chunk, piece in chunks(data)]
    return [messages.PutBlobRequest(header=header), *parts]


def rows_of(problem: Problem, update: int, lo: int, hi: int) -> NDArray[np.int32]:
    """Row ids of blocks [lo, hi) of an update of the first epoch."""
    schedule, block = problem.schedule, problem.schedule.block
    base = update * schedule.capacity * block
    last = min(hi * block, schedule.rows_of(update))
    return builders.ids_of(schedule)[base + lo * block : base + last]


def update_requests(
    problem: Problem, update: int, lo: int, hi: int, *, parameters: bytes | None = None, rows: bytes | None = None
) -> list[messages.TrainRequest]:
    """One update: the plan with the first chunk, then the other chunks."""
    rows = rows_of(problem, update, lo, hi).tobytes() if rows is None else rows
    parts = chunks(problem.initial.tobytes() if parameters is None else parameters)
    plan = messages.UpdatePlan(update=update, lo=lo, hi=hi, rows=rows)
    requests = [messages.TrainRequest(payload=piece, parameters=chunk) for chunk, piece in parts] or [messages.TrainRequest()]
    requests[0].plan.CopyFrom(plan)
    return requests


def open_request(problem: Problem, program: bytes) -> messages.OpenRequest:
    def header(array: NDArray[Any]) -> tensor_pb2.TensorHeader:
        return tensor_pb2.TensorHeader(dtype=array.dtype.name, shape=array.shape)

    sizes, schedule = problem.sizes, problem.schedule
    fit = experiment_pb2.Fit(
        dtype=sizes.dtype, parameters=sizes.parameters, metrics=sizes.metrics, block=sizes.block, rows=schedule.rows,
        batch=schedule.batch, seed=schedule.seed,
    )  # fmt: skip
    return messages.OpenRequest(
        fit=fit, program=tensors.digest_bytes(program), x=header(problem.x), x_digest=tensors.digest_bytes(problem.x.tobytes()),
        y=header(problem.y), y_digest=tensors.digest_bytes(problem.y.tobytes()),
        parameters_digest=tensors.digest_bytes(problem.initial.tobytes()), canary_rows=rows_of(problem, 0, 0, 1).tolist(),
    )  # fmt: skip


class Daemon:
    """``python -m phalanx_worker`` with its greeting sent and its ready line read."""

    def __init__(
        self, *arguments: str, lease: float = 3600.0, environment: Mapping[str, str] | None = None, stderr: int | None = None
    ) -> None:
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "phalanx_worker", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log if stderr is None else stderr,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        self.say(json.dumps({"token": TOKEN, "lease": lease}))
        self.ready = self._wait_until_ready(lease)
        self.socket = Path(self.ready["socket"])
        self.channel = grpc.insecure_channel(f"unix:{self.socket}", options=[("grpc.enable_http_proxy", 0)])
        self.stub = worker_service_pb2_grpc.WorkerServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def _wait_until_ready(self, lease: float) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        assert self.process.stdout is not None
        while not select.select([self.process.stdout], [], [], min(lease / 5, 5.0))[0]:
            assert time.monotonic() < deadline, self.words()
            self.say("")
        assert self.process.stdout is not None and self.process.stdout.readline() == b"\n"
        return self.line()

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def line(self) -> dict[str, Any]:
        """The next line of its standard output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.words()
        found: dict[str, Any] = json.loads(line)
        return found

    def words(self) -> str:
        """What it wrote to its standard error."""
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), size, 0).decode()

    def family(self) -> list[psutil.Process]:
        """The daemon's process and all below it."""
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def put(self, *blobs: bytes) -> None:
        for data in blobs:
            self.stub.PutBlob(iter(blob(data)), timeout=PATIENCE, metadata=metadata())

    def open(
        self, problem: Problem, artifact: bytes | None = None, tags: Metadata | None = None, **changed: Any
    ) -> messages.OpenResponse:
        """Send what is missing and open; ``changed`` replaces fields of the request."""
        artifact = artifact or builders.artifacts_of(problem.spec)["gradient"]
        self.put(artifact, problem.x.tobytes(), problem.y.tobytes(), problem.initial.tobytes())
        request = open_request(problem, artifact)
        for name, value in changed.items():
            target: Any = request.fit if name in request.fit.DESCRIPTOR.fields_by_name else request
            target.ClearField(name)
            if isinstance(value, list | tuple):
                getattr(target, name).extend(value)
            elif hasattr(value, "DESCRIPTOR"):
                getattr(target, name).CopyFrom(value)
            else:
                setattr(target, name, value)
        answer: messages.OpenResponse = self.stub.Open(request, timeout=PATIENCE, metadata=tags or metadata())
        return answer

    def train(self, requests: Sequence[messages.TrainRequest], tags: Metadata | None = None) -> list[messages.TrainResponse]:
        """All answers of one stream."""
        return list(self.stub.Train(iter(requests), timeout=PATIENCE, metadata=tags or metadata()))

    def simulate(self, *ranges: tuple[int, int], seed: int = 42) -> list[messages.SimulateResponse]:
        requests = [
            messages.SimulateRequest(index=index, start=lo, stop=hi, seed=seed) for index, (lo, hi) in enumerate(ranges)
        ]
        return list(self.stub.Simulate(iter(requests), timeout=PATIENCE, metadata=metadata()))

    def close_run(self, tags: Metadata | None = None) -> None:
        self.stub.Close(messages.CloseRequest(), timeout=PATIENCE, metadata=tags or metadata())

    def end(self) -> int:
        """Close its input and wait for its end; returns the exit status."""
        self.channel.close()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            self.log.close()


def nodes_in(responses: Sequence[messages.TrainResponse]) -> Nodes:
    """The node vectors of one update, from their pieces."""
    pieces: dict[tuple[int, int], bytes] = defaultdict(bytes)
    for response in responses:
        payload = response.payload
        for part in response.parts:
            data, payload = payload[: part.chunk.length], payload[part.chunk.length :]
            assert part.chunk.offset == len(pieces[part.lo, part.hi])
            assert part.chunk.checksum == xxhash.xxh3_64_intdigest(data)
            pieces[part.lo, part.hi] += data
        assert not payload
    return {span: np.frombuffer(data, "<f8") for span, data in pieces.items()}


@contextlib.contextmanager
def refused(kind: type[PhalanxError], message: str = "") -> Iterator[None]:
    """The call inside ends with this error's status, its details, and a message that matches."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    found: Any = caught.value
    assert found.code() is grpc.StatusCode[kind.status], found
    carried = [value for key, value in found.trailing_metadata() if key == "phalanx-error-bin"]
    assert len(carried) == 1, found
    error = errors.from_wire(carried[0])
    assert type(error) is kind, repr(error)
    with pytest.raises(kind, match=message):
        raise error


def expected(problem: Problem, update: int, lo: int, hi: int) -> dict[tuple[int, int], bytes]:
    """The nodes as an engine in this process gives them."""
    own = builders.bound_engine(problem)
    ids = builders.ids_of(problem.schedule)
    found = builders.nodes_of(own, problem.schedule, problem.initial, ids, lo, hi, update)
    return {span: values.tobytes() for span, values in found.items()}


def assert_right(daemon: Daemon, problem: Problem, update: int, lo: int, hi: int) -> messages.Receipt:
    """A correct update gives the bits of an engine in this process; returns the receipt."""
    responses = daemon.train(update_requests(problem, update, lo, hi))
    assert {response.update for response in responses} == {update}
    found = {span: values.tobytes() for span, values in nodes_in(responses).items()}
    assert found == expected(problem, update, lo, hi)
    assert [response.HasField("receipt") for response in responses] == [False] * (len(responses) - 1) + [True]
    return responses[-1].receipt
