"""A fit over the wire: what a real daemon opens and trains has the bits of any engine; what means harm, it refuses."""

import queue
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from phalanx_proto import reduction, tensors
from phalanx_proto.errors import (
    CorruptData,
    InvalidRequest,
    PhalanxError,
    ProgramRefused,
    StaleIncarnation,
    UnknownDigest,
    WrongRun,
)
from phalanx_proto.v1 import tensor_pb2
from phalanx_proto.v1 import worker_service_pb2 as messages
from tests.worker import builders, daemons
from tests.worker.builders import Problem
from tests.worker.daemons import PATIENCE, Daemon, assert_right, expected, metadata, refused, update_requests

# Open


def test_the_canary_is_the_digest_of_block_0(daemon: Daemon, served: Problem) -> None:
    answer = daemon.open(served)
    assert answer.canary == tensors.digest(np.frombuffer(expected(served, 0, 0, 1)[0, 1]))
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
        ({"parameters": 38}, InvalidRequest, "takes 304 bytes, blob .* has 312"),
        ({"parameters": (1 << 64) - 1}, InvalidRequest, "at most"),
        ({"parameters_digest": tensors.digest_bytes(b"odd")}, InvalidRequest, "takes 312 bytes, blob .* has 3"),
        ({"block": 0}, InvalidRequest, "a block of 0 rows"),
        ({"batch": 0}, InvalidRequest, "a batch of 0 rows"),
        ({"rows": (1 << 64) - 1}, InvalidRequest, f"{(1 << 64) - 1} rows"),
        ({"metrics": (1 << 32) - 1}, ProgramRefused, "signature"),
        ({"canary_rows": [50]}, InvalidRequest, "a canary row lies outside the data"),
        ({"canary_rows": [(1 << 32) - 1]}, InvalidRequest, "a canary row lies outside the data"),
        ({"canary_rows": [0, 1, 2]}, InvalidRequest, "3 row ids came for 4 rows"),
        ({"canary_rows": []}, InvalidRequest, "the canary's rows are not a block"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_run_that_cannot_be_opened_is_refused(
    opened: Daemon, served: Problem, changed: dict[str, Any], kind: type[PhalanxError], message: str
) -> None:
    opened.put(b"odd")
    with refused(kind, message):
        opened.open(served, **changed)
    with refused(WrongRun, "no run is open"):
        opened.train(update_requests(served, 0, 0, 7))
    opened.open(served)


def test_another_run_can_be_opened_at_once(opened: Daemon, served: Problem) -> None:
    other = builders.make_problem(builders.make_spec("float32"), rows=50, batch=26)
    opened.open(other, tags=metadata("run-2"))
    responses = opened.train(update_requests(other, 1, 0, 6), metadata("run-2"))
    assert {span: values.tobytes() for span, values in daemons.nodes_in(responses).items()} == expected(other, 1, 0, 6)
    opened.close_run(metadata("run-2"))
    opened.open(served)


# Train


@pytest.mark.parametrize(("update", "lo", "hi"), [(0, 0, 7), (0, 2, 5), (0, 6, 7), (1, 0, 6), (1, 1, 6)])
def test_the_nodes_are_those_of_any_engine(opened: Daemon, served: Problem, update: int, lo: int, hi: int) -> None:
    receipt = assert_right(opened, served, update, lo, hi)
    assert receipt.rows == len(daemons.rows_of(served, update, lo, hi))
    assert 0 < receipt.compute_ns <= receipt.total_ns and receipt.HasField("prepare_ns")


def test_updates_follow_each_other_on_one_stream(opened: Daemon, served: Problem) -> None:
    plans = [(0, 0, 7), (1, 2, 4), (0, 3, 4)]
    requests = [request for plan in plans for request in update_requests(served, *plan)]
    responses = opened.train(requests)
    assert [response.update for response in responses] == [0, 1, 0]
    for plan, response in zip(plans, responses, strict=True):
        found = {span: values.tobytes() for span, values in daemons.nodes_in([response]).items()}
        assert found == expected(served, *plan)


def test_a_plan_may_come_before_its_parameters(opened: Daemon, served: Problem) -> None:
    whole = update_requests(served, 0, 0, 7)
    rest = messages.TrainRequest(payload=whole[0].payload, parameters=whole[0].parameters)
    split = [messages.TrainRequest(plan=whole[0].plan), rest]
    assert opened.train(split)[0].parts == opened.train(whole)[0].parts


def test_large_values_travel_in_pieces(opened: Daemon, served: Problem) -> None:
    wide = builders.make_problem(builders.make_spec(hidden=40_000), rows=50, batch=26)
    opened.open(wide)
    requests = update_requests(wide, 0, 1, 7)
    assert len(requests) == 3 and wide.sizes.node_size * 8 > 2 << 20
    responses = opened.train(requests)
    assert len(responses) > 2 and all(response.ByteSize() <= 4 << 20 for response in responses)
    found = {span: values.tobytes() for span, values in daemons.nodes_in(responses).items()}
    assert found == expected(wide, 0, 1, 7)
    assert list(found) == list(reduction.maximal_nodes(1, 7, 7))
    opened.open(served)


Plan = messages.UpdatePlan
Ids = np.ndarray[Any, np.dtype[np.int32]]


def stretched(ids: Ids, *more: int, keep: int = 26) -> bytes:
    return np.append(ids[:keep], np.array(more, np.int32)).astype(np.int32).tobytes()


PLAN_FAULTS: dict[str, Callable[[Ids], Plan]] = {
    "over-long": lambda ids: Plan(lo=0, hi=8, rows=ids.tobytes()),
    "over-long later": lambda ids: Plan(update=1, lo=0, hi=7, rows=ids.tobytes()),
    "empty": lambda ids: Plan(lo=7, hi=7),
    "reversed": lambda ids: Plan(lo=5, hi=2, rows=ids.tobytes()),
    "far": lambda ids: Plan(lo=0, hi=(1 << 32) - 1, rows=ids.tobytes()),
    "late": lambda ids: Plan(update=(1 << 64) - 1, lo=0, hi=7, rows=ids.tobytes()),
    "few rows": lambda ids: Plan(lo=0, hi=7, rows=stretched(ids, keep=25)),
    "many rows": lambda ids: Plan(lo=0, hi=7, rows=stretched(ids, 0)),
    "row outside": lambda ids: Plan(lo=0, hi=7, rows=stretched(ids, 50, keep=25)),
    "row negative": lambda ids: Plan(lo=0, hi=7, rows=stretched(ids, -1, keep=25)),
    "half a row": lambda ids: Plan(lo=0, hi=7, rows=ids.tobytes()[:-2]),
}


def faulty(problem: Problem, how: str) -> list[messages.TrainRequest]:
    """One update with one fault."""
    (good,) = update_requests(problem, 0, 0, 7)
    chunk, data = good.parameters, problem.initial.tobytes()
    if how in PLAN_FAULTS:
        plan = PLAN_FAULTS[how](daemons.rows_of(problem, 0, 0, 7))
        return [messages.TrainRequest(payload=good.payload, plan=plan, parameters=chunk)]
    parameters = {
        "long": daemons.chunks(bytes(320))[0],
        "short": daemons.chunks(data[:-8])[0],
        "flipped": (tensor_pb2.Chunk(offset=0, length=len(data), checksum=chunk.checksum ^ 1), data),
        "gap": (tensor_pb2.Chunk(offset=8, length=len(data) - 8, checksum=1), data[8:]),
        "hole": (tensor_pb2.Chunk(), b""),
    }
    if how in parameters:
        chunk, payload = parameters[how]
        return [messages.TrainRequest(payload=payload, plan=good.plan, parameters=chunk), good]
    return {"no plan": [messages.TrainRequest(payload=good.payload, parameters=chunk)], "nothing": [messages.TrainRequest()]}[
        how
    ]


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
    opened: Daemon, served: Problem, how: str, kind: type[PhalanxError], message: str
) -> None:
    with refused(kind, message):
        opened.train(faulty(served, how))


def test_a_newer_stream_takes_the_place_of_an_older(opened: Daemon, served: Problem) -> None:
    pending: queue.Queue[messages.TrainRequest | None] = queue.Queue()
    older = iter(opened.stub.Train(iter(pending.get, None), timeout=PATIENCE, metadata=metadata()))
    pending.put(update_requests(served, 0, 0, 7)[0])
    first = next(older)
    assert opened.train(update_requests(served, 0, 0, 7))[0].parts == first.parts
    pending.put(update_requests(served, 1, 0, 6)[0])
    with refused(StaleIncarnation, "a newer stream or run has taken the place"):
        next(older)
    pending.put(None)


def test_a_stream_that_its_client_drops_leaves_the_run_open(opened: Daemon, served: Problem) -> None:
    pending: queue.Queue[messages.TrainRequest | None] = queue.Queue()
    stream: Any = opened.stub.Train(iter(pending.get, None), timeout=PATIENCE, metadata=metadata())
    pending.put(update_requests(served, 0, 0, 7)[0])
    next(stream)
    stream.cancel()
    pending.put(None)


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
        ("flipped root", "program 'gradient'"),
    ],
)
def test_a_hostile_program_is_refused(opened: Daemon, served: Problem, how: str, message: str) -> None:
    with refused(ProgramRefused, message):
        opened.open(served, hostile_artifact(served, how))
    opened.open(served)


def test_a_bit_flipped_in_a_module_is_refused_or_harmless(opened: Daemon, served: Problem) -> None:
    try:
        opened.open(served, hostile_artifact(served, "flipped module"))
    except grpc.RpcError as error:
        found: Any = error
        assert found.code() is grpc.StatusCode.INVALID_ARGUMENT
    opened.open(served)
