"""Who may join: slots against the allocation, handshakes against the run; all refusals in one table."""

import dataclasses
from typing import Any

import pytest

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members.admission import (
    Comparison,
    HandshakeExpectation,
    admit,
    allocation_problems,
    automatic_workers,
    check_allocation,
    compare_handshake,
    shared_slots,
)
from phalanx_proto.errors import AdmissionRefused, Unavailable, from_wire, to_wire
from phalanx_proto.handshake import PASSED, PROTOCOL, BackendFound, Handshake

WHY = "the machine has 2 logical CPUs"
WANTED = HandshakeExpectation(
    worker="atlas-01",
    source="s1",
    jax="0.10.1",
    jaxlib="0.10.1",
    python="3.11.7",
    slots=2,
    backend="cpu",
    device=0,
    dtype="float32",
)
FOUND = Handshake(
    protocol=PROTOCOL,
    phalanx="0.1.0",
    source="s1",
    platform="Linux x86_64",
    python="3.11.2",
    jax="0.10.1",
    jaxlib="0.10.1",
    cpu_features="x86-64-v4: avx",
    slots_asked=2,
    slots_found=2,
    backends=(
        BackendFound(name="cpu", devices=("cpu",), reason=""),
        BackendFound(name="cuda", devices=("H200",), reason=""),
        BackendFound(name="mps", devices=(), reason="Apple Metal needs a Mac"),
    ),
    self_test=PASSED,
    pid=7,
    numeric_class="c",
)


def record(name: str, slots: int = 1, **fields: Any) -> WorkerRecord:
    return dataclasses.replace(WorkerRecord(name=name, transport="local", slots=slots), **fields)


@pytest.mark.parametrize(
    ("slots", "physical", "workers"),
    [
        (1, 1, 1),
        (2, 2, 2),
        (2, 1, 1),
        (3, None, 2),
        (4, 4, 3),
        (8, 4, 3),
        (4, 64, 3),
        (64, 32, 8),
        (9, 9, 8),
        (1, 64, 1),
    ],
)
def test_the_automatic_choice_is_conservative(slots: int, physical: int | None, workers: int) -> None:
    assert automatic_workers(slots, physical) == workers


def test_slots_of_all_members_here_add_up() -> None:
    assert check_allocation([record("a"), record("b", transport="socket")], slots=2, reason=WHY) == []
    with pytest.raises(Unavailable, match=r"3 CPU slots together \(a 1, b 2\), but 2 are found, because the machine has 2"):
        check_allocation([record("a"), record("b", 2, transport="socket")], slots=2, reason=WHY)


def test_members_elsewhere_and_accelerators_take_no_cpu_slot_here() -> None:
    elsewhere = record("c", 64, transport="ssh", host="h", python="/p")
    gpus = [record("g0", backend="cuda"), record("g1", backend="cuda", device=1)]
    assert allocation_problems([record("a", 2), elsewhere, *gpus], slots=2, reason=WHY) == []


def test_an_accelerator_is_given_out_once() -> None:
    members = [record("g", backend="cuda"), record("h", backend="cuda", transport="socket")]
    assert allocation_problems(members, slots=2, reason=WHY) == [
        "2 workers on this machine ask for cuda device 0, which is one slot"
    ]
    with pytest.raises(Unavailable, match="cuda device 0"):
        check_allocation(members, slots=2, reason=WHY)


def test_oversubscription_is_admitted_and_noted() -> None:
    (note,) = check_allocation([record("a", 3)], slots=2, reason=WHY, oversubscribe=True)
    assert note.startswith("oversubscribed: ") and "3 CPU slots" in note
    assert check_allocation([record("a", 2)], slots=2, reason=WHY, oversubscribe=True) == []


def test_more_than_256_slots_are_never_admitted() -> None:
    with pytest.raises(Unavailable, match="at most 256"):
        check_allocation([record("a", 256), record("b", 1)], slots=2, reason=WHY, oversubscribe=True)


def test_an_equal_handshake_is_admitted() -> None:
    assert compare_handshake(WANTED, FOUND) == Comparison()
    assert admit([Comparison(), Comparison()]) == []


@pytest.mark.parametrize(
    ("wanted", "found", "field", "shown"),
    [
        ({}, {"source": "s2"}, "source", "s2"),
        ({}, {"jax": "0.12.0"}, "jax", "0.12.0"),
        ({}, {"jaxlib": ""}, "jaxlib", "not installed"),
        ({}, {"self_test": "broadcast sum: 3 for 4"}, "self-test", "broadcast sum: 3 for 4"),
        ({}, {"slots_found": 1}, "slots", "1"),
        ({}, {"slots_asked": 3}, "slots asked", "3"),
        ({"backend": "mps"}, {}, "backend", "Apple Metal needs a Mac"),
        ({"backend": "mps", "dtype": "float64"}, {}, "dtype", "float32 alone: mps has no float64"),
        ({"backend": "cuda"}, {"backends": ()}, "backend", "not found"),
        ({"backend": "cuda", "device": 1}, {}, "device", "0: H200"),
        ({}, {"protocol": 2}, "protocol", "2 (Phalanx 0.1.0)"),
        ({}, {"self_test": "bad\x1b[31m\nend"}, "self-test", "bad [31m end"),
    ],
)
def test_each_difference_is_a_row(wanted: dict[str, Any], found: dict[str, Any], field: str, shown: str) -> None:
    compared = compare_handshake(dataclasses.replace(WANTED, **wanted), dataclasses.replace(FOUND, **found))
    (row,) = compared.refusals
    assert (row["worker"], row["field"], row["found"]) == ("atlas-01", field, shown)
    assert row["wanted"]


def test_a_worker_of_another_protocol_is_judged_by_that_alone() -> None:
    found = dataclasses.replace(FOUND, protocol=2, source="", jax="", backends=(), self_test="")
    assert [row["field"] for row in compare_handshake(WANTED, found).refusals] == ["protocol"]


def test_oversubscription_and_accelerators_do_not_count_cpu_slots() -> None:
    few = dataclasses.replace(FOUND, slots_found=1)
    assert compare_handshake(dataclasses.replace(WANTED, oversubscribe=True), few) == Comparison()
    gpu = dataclasses.replace(WANTED, backend="cuda", slots=1)
    assert compare_handshake(gpu, dataclasses.replace(FOUND, slots_asked=1)) == Comparison()


def test_another_python_is_a_note() -> None:
    compared = compare_handshake(WANTED, dataclasses.replace(FOUND, python="3.13.1"))
    assert compared.refusals == ()
    assert admit([compared]) == ["atlas-01 runs Python 3.13.1, the coordinator 3.11.7"]


def test_all_differences_of_all_workers_are_one_table() -> None:
    first = compare_handshake(WANTED, dataclasses.replace(FOUND, jax="0.12.0", slots_found=1))
    second = compare_handshake(dataclasses.replace(WANTED, worker="b"), dataclasses.replace(FOUND, source="s2"))
    with pytest.raises(AdmissionRefused) as caught:
        admit([first, Comparison(), second])
    rows = caught.value.details["rows"]
    assert [(row["worker"], row["field"]) for row in rows] == [
        ("atlas-01", "jax"),
        ("atlas-01", "slots"),
        ("b", "source"),
    ]
    assert "atlas-01: jax: wanted 0.10.1, found 0.12.0" in str(caught.value)
    assert from_wire(to_wire(caught.value)).details["rows"] == rows


def test_records_that_share_a_far_machine_share_its_slots() -> None:
    def far(name: str, slots: int, host: str = "peer", **more: Any) -> WorkerRecord:
        return WorkerRecord(name=name, transport="ssh", host=host, python="/p", slots=slots, **more)

    records = [far("a", 3), far("b", 2), far("c", 4, "other"), far("gpu", 1, backend="cuda")]
    rows = shared_slots(records, {"a": 4, "b": 4, "c": 4, "gpu": 4})
    assert list(rows) == ["a", "b"]
    assert rows["b"] == {"worker": "b", "field": "slots of a and b, on one machine", "wanted": "5", "found": "4"}
    assert shared_slots(records, {"a": 5, "b": 5, "c": 4}) == {}
    assert shared_slots(records, {"a": 4}) == {}
