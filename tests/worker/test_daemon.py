"""The daemon as its coordinator meets it: a process, a socket, a protocol. It refuses by name and lives on."""

import queue
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from phalanx_proto import fingerprint, philox, reduction, tensors
from phalanx_proto.errors import (
    CorruptData,
    InvalidRequest,
    PhalanxError,
    ProgramRefused,
    StaleIncarnation,
    Unauthorized,
    UnknownDigest,
    WrongRun,
)
from phalanx_proto.handshake import PASSED, PROTOCOL
from phalanx_proto.v1 import tensor_pb2
from phalanx_proto.v1 import worker_service_pb2 as messages
from tests.worker import builders, daemons
from tests.worker.builders import Problem
from tests.worker.daemons import PATIENCE, Daemon, blob, metadata, refused, update_requests

PROXY = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "ALL_PROXY")}
FOREIGN = {"XLA_FLAGS": "--xla_no_such_flag=1", "JAX_ENABLE_X64": "0", "JAX_PLATFORMS": "cuda", "NPROC": "8"}
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


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for all of this file, in a hostile environment; its client has the same proxies."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PROXY.items():
            patch.setenv(name, value)
        found = Daemon(environment=FOREIGN)
        yield found
        found.end()


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Updates of 26 and 24 rows: 7 blocks, the last with 2 rows, then 6."""
    return builders.make_problem(rows=50, batch=26)


@pytest.fixture
def opened(daemon: Daemon, problem: Problem) -> Iterator[Daemon]:
    """The daemon with run 1 open; whatever a test did, a correct update follows and gives the right bits."""
    daemon.open(problem)
    yield daemon
    assert_right(daemon, problem, 0, 1, 6)
    daemon.close_run()


def expected(problem: Problem, update: int, lo: int, hi: int) -> dict[tuple[int, int], bytes]:
    own = builders.bound_engine(problem)
    ids = builders.ids_of(problem.schedule)
    found = builders.nodes_of(own, problem.schedule, problem.initial, ids, lo, hi, update)
    return {span: values.tobytes() for span, values in found.items()}


def assert_right(daemon: Daemon, problem: Problem, update: int, lo: int, hi: int) -> messages.Receipt:
    """A correct update gives the bits of an engine in this process; returns the receipt."""
    responses = daemon.train(update_requests(problem, update, lo, hi))
    assert {response.update for response in responses} == {update}
    found = {span: values.tobytes() for span, values in daemons.nodes_in(responses).items()}
    assert found == expected(problem, update, lo, hi)
    assert [response.HasField("receipt") for response in responses] == [False] * (len(responses) - 1) + [True]
    return responses[-1].receipt


# What it says of itself


def test_the_ready_line_says_where_and_who(daemon: Daemon) -> None:
    assert daemon.ready == {"ready": 1, "protocol": PROTOCOL, "socket": str(daemon.socket), "pid": daemon.process.pid}
    assert daemon.socket.is_socket()


def test_it_beats_while_it_lives(daemon: Daemon) -> None:
    first, second = daemon.line()["beat"], daemon.line()["beat"]
    assert second == first + 1


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

CALLS: dict[str, Callable[[Daemon, daemons.Metadata], Any]] = {
    "Handshake": lambda d, m: d.stub.Handshake(messages.HandshakeRequest(), timeout=PATIENCE, metadata=m),
    "MissingBlobs": lambda d, m: d.stub.MissingBlobs(messages.MissingBlobsRequest(), timeout=PATIENCE, metadata=m),
    "PutBlob": lambda d, m: d.stub.PutBlob(iter(blob(b"stray")), timeout=PATIENCE, metadata=m),
    "Open": lambda d, m: d.stub.Open(messages.OpenRequest(), timeout=PATIENCE, metadata=m),
    "Train": lambda d, m: list(d.stub.Train(iter([messages.TrainRequest()]), timeout=PATIENCE, metadata=m)),
    "Simulate": lambda d, m: list(d.stub.Simulate(iter([messages.SimulateRequest(stop=5)]), timeout=PATIENCE, metadata=m)),
    "Close": lambda d, m: d.stub.Close(messages.CloseRequest(), timeout=PATIENCE, metadata=m),
    "Check": lambda d, m: d.health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE, metadata=m),
    "Watch": lambda d, m: next(d.health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE, metadata=m)),
}


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


def test_an_older_incarnation_cannot_take_the_run_over(opened: Daemon, problem: Problem) -> None:
    with refused(StaleIncarnation, "incarnation 1 of the run, not 0"):
        opened.open(problem, tags=metadata(incarnation=0))


def test_a_newer_incarnation_takes_the_run_over(opened: Daemon, problem: Problem) -> None:
    opened.open(problem, tags=metadata(incarnation=2))
    with refused(StaleIncarnation, "incarnation 2 of the run, not 1"):
        opened.train(update_requests(problem, 0, 0, 7))
    opened.close_run(metadata(incarnation=2))
    opened.open(problem)


def test_without_a_run_there_is_nothing_to_train(daemon: Daemon, problem: Problem) -> None:
    daemon.close_run()
    with refused(WrongRun, "no run is open here; open 'run-1' first"):
        daemon.train(update_requests(problem, 0, 0, 7))


# Blobs


def test_only_missing_blobs_need_to_be_sent(daemon: Daemon) -> None:
    digest = tensors.digest_bytes(b"content")
    request = messages.MissingBlobsRequest(digests=[digest, "f" * 64])
    tags = metadata()
    assert list(daemon.stub.MissingBlobs(request, timeout=PATIENCE, metadata=tags).digests) == [digest, "f" * 64]
    assert daemon.stub.PutBlob(iter(blob(b"content")), timeout=PATIENCE, metadata=tags).stored
    assert list(daemon.stub.MissingBlobs(request, timeout=PATIENCE, metadata=tags).digests) == ["f" * 64]
    assert not daemon.stub.PutBlob(iter(blob(b"content")), timeout=PATIENCE, metadata=tags).stored


def damaged(how: str) -> list[messages.PutBlobRequest]:
    """A blob of three chunks with one fault."""
    header, *_ = blob(bytes(range(30)))
    parts = [messages.PutBlobRequest(chunk=chunk) for chunk in daemons.chunks(bytes(range(30)), 10)]
    match how:
        case "gap":
            del parts[1]
        case "overlap":
            parts[1].chunk.offset = 5
        case "repeated":
            parts.insert(1, parts[0])
        case "flipped":
            parts[1].chunk.data = bytes(10)
        case "checksum":
            parts[2].chunk.checksum ^= 1
        case "short":
            del parts[2]
        case "long":
            parts.append(messages.PutBlobRequest(chunk=tensor_pb2.Chunk(offset=30, data=b"x", checksum=1)))
        case "digest":
            header.header.digest = "0" * 64
        case "empty":
            parts.insert(0, messages.PutBlobRequest(chunk=tensor_pb2.Chunk()))
        case "header twice":
            parts.insert(1, header)
        case "no header":
            return parts
        case "huge":
            header.header.length = 1 << 62
        case "nothing":
            return []
        case "hollow":
            return [messages.PutBlobRequest()]
    return [header, *parts]


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
    ],
)
def test_a_damaged_blob_is_refused(daemon: Daemon, how: str, kind: type[PhalanxError], message: str) -> None:
    with refused(kind, message):
        daemon.stub.PutBlob(iter(damaged(how)), timeout=PATIENCE, metadata=metadata())
    request = messages.MissingBlobsRequest(digests=[tensors.digest_bytes(bytes(range(30)))])
    assert len(daemon.stub.MissingBlobs(request, timeout=PATIENCE, metadata=metadata()).digests) == 1


def test_a_message_over_the_limit_ends_its_call_alone(daemon: Daemon) -> None:
    data = bytes(17 << 20)
    request = messages.PutBlobRequest(chunk=tensor_pb2.Chunk(data=data))
    with pytest.raises(grpc.RpcError) as caught:
        daemon.stub.PutBlob(iter([request]), timeout=PATIENCE, metadata=metadata())
    found: Any = caught.value
    assert found.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    test_health_is_told_to_those_who_know_the_token(daemon)


# Open


def test_the_canary_is_the_digest_of_block_0(daemon: Daemon, problem: Problem) -> None:
    answer = daemon.open(problem)
    assert answer.canary == tensors.digest(np.frombuffer(expected(problem, 0, 0, 1)[0, 1]))
    assert answer.receipt.total_ns > 0 and answer.receipt.resident > 0 and not answer.receipt.HasField("compute_ns")
    daemon.close_run()
    daemon.close_run()


def header(dtype: str, *shape: int) -> tensor_pb2.TensorHeader:
    return tensor_pb2.TensorHeader(dtype=dtype, shape=shape)


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"program": "f" * 64}, UnknownDigest, "no blob ffff"),
        ({"x_digest": "f" * 64}, UnknownDigest, "no blob ffff"),
        ({"parameters_digest": ""}, UnknownDigest, "no blob"),
        ({"dtype": "float32"}, InvalidRequest, r"x is float64\[50, 5\]"),
        ({"dtype": "float16"}, InvalidRequest, "dtype 'float16'"),
        ({"x": header("float32", 50, 5)}, InvalidRequest, r"x is float32\[50, 5\]"),
        ({"x": header("float64", 50, 6)}, InvalidRequest, "takes 2400 bytes, blob .* has 2000"),
        ({"x": header("float64", 25, 10)}, InvalidRequest, r"x has shape \[25, 10\] for 50 rows"),
        ({"y": header("int64", 50)}, InvalidRequest, "takes 400 bytes, blob .* has 200"),
        ({"y": header("object", 50)}, InvalidRequest, "arrays of object do not travel"),
        ({"y": header("float32", 50)}, ProgramRefused, "signature"),
        ({"parameters": 38}, InvalidRequest, "takes 304 bytes, blob .* has 312"),
        ({"parameters": (1 << 64) - 1}, InvalidRequest, "at most"),
        ({"parameters_digest": tensors.digest_bytes(b"odd")}, InvalidRequest, "takes 312 bytes, blob .* has 3"),
        ({"block": 0}, InvalidRequest, "a block of 0 rows"),
        ({"block": 8}, ProgramRefused, "signature"),
        ({"batch": 0}, InvalidRequest, "a batch of 0 rows"),
        ({"rows": (1 << 64) - 1}, InvalidRequest, f"{(1 << 64) - 1} rows"),
        ({"metrics": (1 << 32) - 1}, ProgramRefused, "signature"),
        ({"canary_rows": [50]}, InvalidRequest, "a canary row lies outside the data"),
        ({"canary_rows": [(1 << 32) - 1]}, InvalidRequest, "a canary row lies outside the data"),
        ({"canary_rows": [0, 1, 2]}, InvalidRequest, "3 row ids came for 4 rows"),
        ({"canary_rows": []}, InvalidRequest, "the canary's rows are not a block"),
    ],
    ids=str,
)
def test_a_run_that_cannot_be_opened_is_refused(
    opened: Daemon, problem: Problem, changed: dict[str, Any], kind: type[PhalanxError], message: str
) -> None:
    opened.put(b"odd")
    with refused(kind, message):
        opened.open(problem, **changed)
    with refused(WrongRun, "no run is open"):
        opened.train(update_requests(problem, 0, 0, 7))
    opened.open(problem)


def test_another_run_can_be_opened_at_once(opened: Daemon, problem: Problem) -> None:
    other = builders.make_problem(builders.make_spec("float32"), rows=50, batch=26)
    opened.open(other, tags=metadata("run-2"))
    responses = opened.train(update_requests(other, 1, 0, 6), metadata("run-2"))
    assert {span: values.tobytes() for span, values in daemons.nodes_in(responses).items()} == expected(other, 1, 0, 6)
    opened.close_run(metadata("run-2"))
    opened.open(problem)


# Train


@pytest.mark.parametrize(("update", "lo", "hi"), [(0, 0, 7), (0, 2, 5), (0, 6, 7), (1, 0, 6), (1, 1, 6)])
def test_the_nodes_are_those_of_any_engine(opened: Daemon, problem: Problem, update: int, lo: int, hi: int) -> None:
    receipt = assert_right(opened, problem, update, lo, hi)
    assert receipt.rows == len(daemons.rows_of(problem, update, lo, hi))
    assert 0 < receipt.compute_ns <= receipt.total_ns and receipt.HasField("prepare_ns")


def test_updates_follow_each_other_on_one_stream(opened: Daemon, problem: Problem) -> None:
    plans = [(0, 0, 7), (1, 2, 4), (0, 3, 4)]
    requests = [request for plan in plans for request in update_requests(problem, *plan)]
    responses = opened.train(requests)
    assert [response.update for response in responses] == [0, 1, 0]
    for plan, response in zip(plans, responses, strict=True):
        found = {span: values.tobytes() for span, values in daemons.nodes_in([response]).items()}
        assert found == expected(problem, *plan)


def test_a_plan_may_come_before_its_parameters(opened: Daemon, problem: Problem) -> None:
    whole = update_requests(problem, 0, 0, 7)
    split = [messages.TrainRequest(plan=whole[0].plan), messages.TrainRequest(parameters=whole[0].parameters)]
    assert opened.train(split)[0].parts == opened.train(whole)[0].parts


def test_large_values_travel_in_pieces(opened: Daemon, problem: Problem) -> None:
    wide = builders.make_problem(builders.make_spec(hidden=40_000), rows=50, batch=26)
    opened.open(wide)
    requests = update_requests(wide, 0, 1, 7)
    assert len(requests) == 3 and wide.sizes.node_size * 8 > 2 << 20
    responses = opened.train(requests)
    assert len(responses) > 2 and all(response.ByteSize() <= 4 << 20 for response in responses)
    found = {span: values.tobytes() for span, values in daemons.nodes_in(responses).items()}
    assert found == expected(wide, 0, 1, 7)
    assert list(found) == list(reduction.maximal_nodes(1, 7, 7))
    opened.open(problem)


def faulty(problem: Problem, how: str) -> list[messages.TrainRequest]:
    """One update with one fault."""
    (good,) = update_requests(problem, 0, 0, 7)
    ids = daemons.rows_of(problem, 0, 0, 7)
    match how:
        case "over-long":
            return update_requests(problem, 0, 0, 8)
        case "over-long later":
            return update_requests(problem, 1, 0, 7)
        case "empty":
            good.plan.lo = 7
        case "reversed":
            good.plan.lo, good.plan.hi = 5, 2
        case "far":
            good.plan.hi = (1 << 32) - 1
        case "late":
            good.plan.update = (1 << 64) - 1
        case "few rows":
            good.plan.rows = ids[:-1].tobytes()
        case "many rows":
            good.plan.rows = np.append(ids, ids[:1]).tobytes()
        case "row outside":
            good.plan.rows = np.append(ids[:-1], np.int32(50)).tobytes()
        case "row negative":
            good.plan.rows = np.append(ids[:-1], np.int32(-1)).tobytes()
        case "half a row":
            good.plan.rows = ids.tobytes()[:-2]
        case "no plan":
            good.ClearField("plan")
        case "nothing":
            good = messages.TrainRequest()
        case "short":
            return [*update_requests(problem, 0, 0, 7, parameters=bytes(304)), good]
        case "long":
            return update_requests(problem, 0, 0, 7, parameters=bytes(320))
        case "flipped":
            good.parameters.checksum ^= 1
        case "gap":
            good.parameters.offset = 8
        case "hole":
            good.parameters.data = b""
    return [good]


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("over-long", InvalidRequest, r"blocks \[0, 8\) of update 0 are not a range of its 7 blocks"),
        ("over-long later", InvalidRequest, r"blocks \[0, 7\) of update 1 are not a range of its 6 blocks"),
        ("empty", InvalidRequest, "are not a range"),
        ("reversed", InvalidRequest, "are not a range"),
        ("far", InvalidRequest, "are not a range"),
        ("late", InvalidRequest, "is not a number from 0"),
        ("few rows", InvalidRequest, "25 row ids came for 26 rows"),
        ("many rows", InvalidRequest, "27 row ids came for 26 rows"),
        ("row outside", InvalidRequest, "a row id lies outside the 50 rows"),
        ("row negative", InvalidRequest, "a row id lies outside the 50 rows"),
        ("half a row", InvalidRequest, "row ids are int32, but 102 bytes of them came"),
        ("no plan", InvalidRequest, "parameters came without the plan"),
        ("nothing", InvalidRequest, "parameters came without the plan"),
        ("short", InvalidRequest, "the parameters of update 0 are not complete"),
        ("long", CorruptData, "runs over"),
        ("flipped", CorruptData, "does not match its checksum"),
        ("gap", CorruptData, "leaves a gap"),
        ("hole", CorruptData, "is empty"),
    ],
)
def test_an_update_that_does_not_fit_is_refused_and_the_run_stays_open(
    opened: Daemon, problem: Problem, how: str, kind: type[PhalanxError], message: str
) -> None:
    with refused(kind, message):
        opened.train(faulty(problem, how))


def test_a_newer_stream_takes_the_place_of_an_older(opened: Daemon, problem: Problem) -> None:
    pending: queue.Queue[messages.TrainRequest | None] = queue.Queue()
    older = opened.stub.Train(iter(pending.get, None), timeout=PATIENCE, metadata=metadata())
    pending.put(update_requests(problem, 0, 0, 7)[0])
    first = next(older)
    assert opened.train(update_requests(problem, 0, 0, 7))[0].parts == first.parts
    pending.put(update_requests(problem, 1, 0, 6)[0])
    with refused(StaleIncarnation, "a newer stream or run has taken the place"):
        next(older)
    pending.put(None)


def test_a_stream_that_its_client_drops_leaves_the_run_open(opened: Daemon, problem: Problem) -> None:
    pending: queue.Queue[messages.TrainRequest | None] = queue.Queue()
    stream = opened.stub.Train(iter(pending.get, None), timeout=PATIENCE, metadata=metadata())
    pending.put(update_requests(problem, 0, 0, 7)[0])
    next(stream)
    stream.cancel()
    pending.put(None)


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


def test_a_simulation_waits_for_no_fit(opened: Daemon) -> None:
    with refused(InvalidRequest, "a fit is open on this worker; close it before simulating"):
        opened.simulate((0, 10))


# Programs that mean harm


def hostile_artifact(problem: Problem, how: str) -> bytes:
    good = builders.artifacts_of(problem.spec)["gradient"]
    match how:
        case "forged call":
            return builders.forged_program(problem)
        case "64 GiB":
            return builders.gradient_program(problem, builders.huge_gradient)
        case "truncated":
            return good[: len(good) // 2]
        case "random":
            return np.random.default_rng(3).bytes(4096)
        case "flipped root":
            return bytes([good[0] ^ 4]) + good[1:]
    flipped = bytearray(good)
    flipped[len(good) * 2 // 3] ^= 16
    return bytes(flipped)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("forged call", "stablehlo.custom_call @phalanx_forged_call: calls code outside the program"),
        ("64 GiB", "68719476736 bytes; at most"),
        ("truncated", "program 'gradient'"),
        ("random", "not readable as an exported program"),
        ("flipped root", "program 'gradient'"),
    ],
)
def test_a_hostile_program_is_refused(opened: Daemon, problem: Problem, how: str, message: str) -> None:
    with refused(ProgramRefused, message):
        opened.open(problem, hostile_artifact(problem, how))
    opened.open(problem)


def test_a_bit_flipped_in_a_module_is_refused_or_harmless(opened: Daemon, problem: Problem) -> None:
    try:
        opened.open(problem, hostile_artifact(problem, "flipped module"))
    except grpc.RpcError as error:
        found: Any = error
        assert found.code() is grpc.StatusCode.INVALID_ARGUMENT
    opened.open(problem)


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
