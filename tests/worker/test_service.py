"""The gRPC edge of a real daemon: who may call, what is kept, what is counted. It refuses by name and lives on."""

import os
import queue
import stat
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2

from phalanx_proto import fingerprint, philox, tensors
from phalanx_proto.errors import CorruptData, InvalidRequest, PhalanxError, StaleIncarnation, Unauthorized, WrongRun
from phalanx_proto.handshake import PASSED, PROTOCOL
from phalanx_proto.v1 import tensor_pb2
from phalanx_proto.v1 import worker_service_pb2 as messages
from tests.worker import builders, daemons
from tests.worker.builders import Problem
from tests.worker.daemons import PATIENCE, Daemon, blob, metadata, refused, update_requests

STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except PermissionError:
    print("refused")
else:
    print("connected")
"""

CALLS: dict[str, Callable[[Daemon, daemons.Metadata], Any]] = {
    "Handshake": lambda d, m: d.stub.Handshake(messages.HandshakeRequest(), timeout=PATIENCE, metadata=m),
    "MissingBlobs": lambda d, m: d.stub.MissingBlobs(messages.MissingBlobsRequest(), timeout=PATIENCE, metadata=m),
    "PutBlob": lambda d, m: d.stub.PutBlob(iter(blob(b"stray")), timeout=PATIENCE, metadata=m),
    "Open": lambda d, m: d.stub.Open(messages.OpenRequest(), timeout=PATIENCE, metadata=m),
    "Train": lambda d, m: list(d.stub.Train(iter([messages.TrainRequest()]), timeout=PATIENCE, metadata=m)),
    "Simulate": lambda d, m: list(d.stub.Simulate(iter([messages.SimulateRequest(stop=5)]), timeout=PATIENCE, metadata=m)),
    "Probe": lambda d, m: list(d.stub.Probe(iter([messages.ProbeRequest(answer=1)]), timeout=PATIENCE, metadata=m)),
    "Close": lambda d, m: d.stub.Close(messages.CloseRequest(), timeout=PATIENCE, metadata=m),
    "Check": lambda d, m: d.health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE, metadata=m),
    "Watch": lambda d, m: next(d.health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE, metadata=m)),
}


# What it says of itself


def test_the_ready_line_says_where_and_who(daemon: Daemon) -> None:
    assert daemon.ready == {"ready": 1, "protocol": PROTOCOL, "socket": str(daemon.socket), "pid": daemon.process.pid}
    assert daemon.socket.is_socket()


def test_it_beats_while_it_lives(daemon: Daemon) -> None:
    first, second = daemon.line()["beat"], daemon.line()["beat"]
    assert second == first + 1


def test_foreign_settings_and_proxies_do_not_reach_it(daemon: Daemon) -> None:
    """It was started with both (``conftest``), and its client has the proxies too."""
    environment = psutil.Process(daemon.process.pid).environ()
    assert not {"http_proxy", "https_proxy", "grpc_proxy", "all_proxy"} & {name.lower() for name in environment}
    assert (environment["JAX_PLATFORMS"], environment["JAX_ENABLE_X64"], environment["NPROC"]) == ("cpu", "1", "1")
    assert "no_such_flag" not in environment["XLA_FLAGS"] and "http_proxy" in os.environ


def test_socket_and_directory_are_private(daemon: Daemon) -> None:
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(daemon.socket.parent.stat().st_mode) == 0o700


def test_the_handshake_reports(daemon: Daemon) -> None:
    request = messages.HandshakeRequest(protocol=99, source="another", slots=7, backend="cuda")
    found = daemon.stub.Handshake(request, timeout=PATIENCE, metadata=metadata())
    assert (found.protocol, found.source) == (PROTOCOL, fingerprint.source_fingerprint())
    assert found.self_test == PASSED and found.pid == daemon.process.pid
    assert found.slots_asked == 1 and found.slots_found >= 1
    assert found.jax and found.jaxlib and found.python and found.platform and found.cpu_features and found.numeric_class
    cpu = next(backend for backend in found.backends if backend.name == "cpu")
    assert len(cpu.devices) == 1 and not cpu.reason
    assert all(bool(backend.devices) != bool(backend.reason) for backend in found.backends)


# Who may call


@pytest.mark.parametrize("token", [None, "", "a token of sufficient lengti", "a token of sufficient length and more"])
@pytest.mark.parametrize("name", CALLS)
def test_without_the_token_nothing_is_answered(daemon: Daemon, name: str, token: str | None) -> None:
    with refused(Unauthorized, "only the coordinator that started this worker can use it"):
        CALLS[name](daemon, metadata(token=token))


def test_every_call_of_the_service_is_guarded() -> None:
    service = messages.DESCRIPTOR.services_by_name["WorkerService"]
    assert {method.name for method in service.methods} | {"Check", "Watch"} == set(CALLS)


def test_health_is_told_to_those_who_know_the_token(daemon: Daemon) -> None:
    for service in ("", "phalanx_proto.v1.WorkerService"):
        request = health_pb2.HealthCheckRequest(service=service)
        answer = daemon.health.Check(request, timeout=PATIENCE, metadata=metadata())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_nothing_of_an_unauthorized_blob_is_kept(daemon: Daemon) -> None:
    digest = tensors.digest_bytes(b"stray")
    request = messages.MissingBlobsRequest(digests=[digest])
    answer = daemon.stub.MissingBlobs(request, timeout=PATIENCE, metadata=metadata())
    assert list(answer.digests) == [digest]


@pytest.mark.skipif(sys.platform != "linux" or builders.USER != 0, reason="only root can act as another user")
def test_another_user_cannot_connect(daemon: Daemon) -> None:
    """The directory keeps others out; so does the socket by itself, even for one who gets into the directory."""

    def stranger() -> str:
        command = [sys.executable, "-c", STRANGER, str(daemon.socket)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    folders = [daemon.socket.parent, *daemon.socket.parent.parents]
    modes = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in folders[:-1]}
    try:
        for folder in list(modes)[1:]:
            folder.chmod(modes[folder] | 0o011)
        assert stranger() == "refused"
        daemon.socket.parent.chmod(0o711)
        assert stranger() == "refused"
        daemon.socket.chmod(0o666)
        assert stranger() == "connected", "the test itself can tell"
    finally:
        daemon.socket.chmod(0o600)
        for folder, mode in modes.items():
            folder.chmod(mode)


# The run and its incarnation


@pytest.mark.parametrize("call", ["Train", "Close"])
@pytest.mark.parametrize(
    ("tags", "kind", "message"),
    [
        (metadata("run-2"), WrongRun, "this worker serves run 'run-1', not 'run-2'"),
        (metadata("run-1", 0), StaleIncarnation, "incarnation 1 of the run, not 0"),
        (metadata("run-1", "one"), InvalidRequest, "names no run and incarnation"),
        (metadata("", 1), InvalidRequest, "names no run and incarnation"),
        ((("phalanx-token", daemons.TOKEN),), InvalidRequest, "names no run and incarnation"),
    ],
    ids=str,
)
def test_a_call_for_another_run_is_refused(
    opened: Daemon, call: str, tags: daemons.Metadata, kind: type[PhalanxError], message: str
) -> None:
    with refused(kind, message):
        CALLS[call](opened, tags)


def test_an_older_incarnation_cannot_take_the_run_over(opened: Daemon, served: Problem) -> None:
    with refused(StaleIncarnation, "incarnation 1 of the run, not 0"):
        opened.open(served, tags=metadata(incarnation=0))


def test_a_newer_incarnation_takes_the_run_over(opened: Daemon, served: Problem) -> None:
    opened.open(served, tags=metadata(incarnation=2))
    with refused(StaleIncarnation, "incarnation 2 of the run, not 1"):
        opened.train(update_requests(served, 0, 0, 7))
    opened.close_run(metadata(incarnation=2))
    opened.open(served)


def test_without_a_run_there_is_nothing_to_train(daemon: Daemon, served: Problem) -> None:
    daemon.close_run()
    with refused(WrongRun, "no run is open here; open 'run-1' first"):
        daemon.train(update_requests(served, 0, 0, 7))


# Blobs


def test_only_missing_blobs_need_to_be_sent(daemon: Daemon) -> None:
    digest = tensors.digest_bytes(b"content")
    request = messages.MissingBlobsRequest(digests=[digest, "f" * 64])
    tags = metadata()
    assert list(daemon.stub.MissingBlobs(request, timeout=PATIENCE, metadata=tags).digests) == [digest, "f" * 64]
    assert daemon.stub.PutBlob(iter(blob(b"content")), timeout=PATIENCE, metadata=tags).stored
    assert list(daemon.stub.MissingBlobs(request, timeout=PATIENCE, metadata=tags).digests) == ["f" * 64]
    assert not daemon.stub.PutBlob(iter(blob(b"content")), timeout=PATIENCE, metadata=tags).stored


Parts = list[messages.PutBlobRequest]


def part(offset: int = 0, data: bytes = b"", checksum: int = 0) -> messages.PutBlobRequest:
    return messages.PutBlobRequest(payload=data, chunk=tensor_pb2.Chunk(offset=offset, length=len(data), checksum=checksum))


def with_header(head: messages.PutBlobRequest, *, digest: str = "", length: int = 0) -> messages.PutBlobRequest:
    found = messages.BlobHeader(digest=digest or head.header.digest, length=length or head.header.length)
    return messages.PutBlobRequest(header=found)


THIRTY = bytes(range(30))
BLOB_FAULTS: dict[str, Callable[[messages.PutBlobRequest, Parts], Parts]] = {
    "gap": lambda head, parts: [head, parts[0], parts[2]],
    "overlap": lambda head, parts: [head, parts[0], part(5, THIRTY[5:15], parts[1].chunk.checksum), parts[2]],
    "repeated": lambda head, parts: [head, parts[0], *parts],
    "flipped": lambda head, parts: [head, parts[0], part(10, bytes(10), parts[1].chunk.checksum), parts[2]],
    "checksum": lambda head, parts: [head, *parts[:2], part(20, THIRTY[20:], parts[2].chunk.checksum ^ 1)],
    "short": lambda head, parts: [head, *parts[:2]],
    "long": lambda head, parts: [head, *parts, part(30, b"x", 1)],
    "digest": lambda head, parts: [with_header(head, digest="0" * 64), *parts],
    "empty": lambda head, parts: [head, part(), *parts],
    "header twice": lambda head, parts: [head, parts[0], head],
    "no header": lambda head, parts: parts,
    "huge": lambda head, parts: [with_header(head, length=1 << 62), *parts],
    "nothing": lambda head, parts: [],
    "hollow": lambda head, parts: [messages.PutBlobRequest()],
    "no bytes": lambda head, parts: [head, messages.PutBlobRequest(chunk=parts[0].chunk)],
    "more bytes": lambda head, parts: [head, messages.PutBlobRequest(payload=THIRTY, chunk=parts[0].chunk)],
}


def damaged(how: str) -> Parts:
    """A blob of three chunks with one fault."""
    parts = [messages.PutBlobRequest(payload=piece, chunk=chunk) for chunk, piece in daemons.chunks(THIRTY, 10)]
    return BLOB_FAULTS[how](blob(THIRTY)[0], parts)


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("gap", CorruptData, "offset 20 of 30 leaves a gap: 10 bytes are here"),
        ("overlap", CorruptData, "offset 5 of 30 overlaps"),
        ("repeated", CorruptData, "offset 0 of 30 overlaps"),
        ("flipped", CorruptData, "offset 10 of 30 does not match its checksum"),
        ("checksum", CorruptData, "offset 20 of 30 does not match its checksum"),
        ("short", CorruptData, "10 bytes did not come"),
        ("long", CorruptData, "runs over"),
        ("digest", CorruptData, "its header said 000000"),
        ("empty", CorruptData, "is empty"),
        ("header twice", InvalidRequest, "one header and then its chunks"),
        ("no header", InvalidRequest, "one header and then its chunks"),
        ("huge", InvalidRequest, "above this worker's limit"),
        ("nothing", InvalidRequest, "a blob without a header"),
        ("hollow", InvalidRequest, "one header and then its chunks"),
        ("no bytes", CorruptData, "chunks of 10 bytes and more came with a payload of 0"),
        ("more bytes", CorruptData, "a payload of 30 bytes came with chunks of 10"),
    ],
)
def test_a_damaged_blob_is_refused(daemon: Daemon, how: str, kind: type[PhalanxError], message: str) -> None:
    with refused(kind, message):
        daemon.stub.PutBlob(iter(damaged(how)), timeout=PATIENCE, metadata=metadata())
    request = messages.MissingBlobsRequest(digests=[tensors.digest_bytes(THIRTY)])
    assert len(daemon.stub.MissingBlobs(request, timeout=PATIENCE, metadata=metadata()).digests) == 1


def test_a_message_over_the_limit_ends_its_call_alone(daemon: Daemon) -> None:
    data = bytes(17 << 20)
    request = messages.PutBlobRequest(payload=data, chunk=tensor_pb2.Chunk(length=len(data)))
    with pytest.raises(grpc.RpcError) as caught:
        daemon.stub.PutBlob(iter([request]), timeout=PATIENCE, metadata=metadata())
    found: Any = caught.value
    assert found.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    test_health_is_told_to_those_who_know_the_token(daemon)


# Simulate


def test_hits_are_exact(daemon: Daemon) -> None:
    ranges = [(0, 1_000_000), (3, 50_001), ((1 << 33) - 5, (1 << 33) + 9), (7, 8)]
    answers = daemon.simulate(*ranges)
    assert [(answer.index, answer.start, answer.stop) for answer in answers] == [(i, *r) for i, r in enumerate(ranges)]
    assert [answer.hits for answer in answers] == [785_856, *(philox.hits(*r, 42) for r in ranges[1:])]
    assert all(answer.receipt.rows == hi - lo for answer, (lo, hi) in zip(answers, ranges, strict=True))


@pytest.mark.parametrize("wrong", [(5, 5), (6, 5), (0, (1 << 40) + 1), ((1 << 64) - 9, (1 << 64) - 1)])
def test_a_range_that_is_none_is_refused(daemon: Daemon, wrong: tuple[int, int]) -> None:
    with refused(InvalidRequest, "are not a range of 1 to"):
        daemon.simulate((0, 10), wrong, (0, 10))
    assert daemon.simulate((0, 1_000_000))[0].hits == 785_856


# Measuring the way


def probe(daemon: Daemon, *requests: messages.ProbeRequest) -> list[messages.ProbeResponse]:
    return list(daemon.stub.Probe(iter(requests), timeout=PATIENCE, metadata=metadata()))


def test_a_measurement_needs_no_run_and_answers_what_asks(daemon: Daemon) -> None:
    up, small = messages.ProbeRequest(data=bytes(1000)), messages.ProbeRequest(data=b"x", answer=0)
    large = messages.ProbeRequest(answer=(2 << 20) + 1)
    first, *pieces = probe(daemon, up, up, small, large)
    assert (first.received, first.data, first.complete) == (2001, b"", True)
    assert sum(len(piece.data) for piece in pieces) == (2 << 20) + 1
    assert [piece.complete for piece in pieces] == [False, False, True]


def test_a_measurement_has_limits(daemon: Daemon) -> None:
    with refused(InvalidRequest, "in one request of a measurement"):
        probe(daemon, messages.ProbeRequest(data=bytes((4 << 20) + 1), answer=0))
    with refused(InvalidRequest, "an answer of"):
        probe(daemon, messages.ProbeRequest(answer=1 << 40))
    assert probe(daemon, messages.ProbeRequest(answer=1))[-1].complete


def test_a_newer_measurement_ends_the_older(daemon: Daemon) -> None:
    asked: queue.SimpleQueue[messages.ProbeRequest | None] = queue.SimpleQueue()
    older: Any = daemon.stub.Probe(iter(asked.get, None), timeout=PATIENCE, metadata=metadata())
    asked.put(messages.ProbeRequest(answer=1))
    assert next(older).complete
    probe(daemon, messages.ProbeRequest(answer=1))
    asked.put(messages.ProbeRequest(answer=1))
    with refused(StaleIncarnation, "a newer measurement"):
        next(older)
    asked.put(None)
