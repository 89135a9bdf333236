"""What a job says of itself on disk: all that decides the result, and nothing private."""

import dataclasses
import getpass
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members.placement import Placement
from phalanx_coordinator.runs import manifest
from phalanx_coordinator.runs.plan import plan_fit
from phalanx_proto import result
from phalanx_proto.execution import Local
from phalanx_proto.experiment import Rows
from phalanx_proto.fingerprint import source_fingerprint
from phalanx_proto.handshake import BackendFound, Handshake
from phalanx_proto.jobs import (
    EpochRecord,
    FitOutcome,
    FitRequest,
    FitSeconds,
    FittedParts,
    MemberReport,
    Score,
    SimulationRequest,
)
from phalanx_worker.inventory import inventory

MakeRows = Callable[..., Rows]
MakeRequest = Callable[..., FitRequest]
MACHINE = inventory(False)
PRIVATE = WorkerRecord(
    name="atlas-02", transport="ssh", host="someone@research-peer", python="/opt/secret/bin/python",
    ssh_options=("-F", "/home/me/lab.conf"),
)  # fmt: skip


def placement(*members: WorkerRecord) -> Placement:
    known = members or (WorkerRecord(name="a", transport="local"), WorkerRecord(name="b", transport="socket", weight=3))
    return Placement(kind="cluster", dtype="float32", members=known, oversubscribe=True, notes=("oversubscribed: so much",))


@pytest.fixture
def described(make_request: MakeRequest, make_rows: MakeRows) -> dict[str, Any]:
    request = make_request(validation=make_rows("validation"), test=make_rows("test"))
    return manifest.of_fit(plan_fit(request, placement()), MACHINE)


def test_a_fit_names_all_that_decides_its_result(described: dict[str, Any]) -> None:
    document = json.loads(json.dumps(described, allow_nan=False))
    assert (document["format"], document["kind"]) == (manifest.FORMAT, "fit")
    experiment = document["experiment"]
    assert (experiment["batch"], experiment["block"], experiment["epochs"], experiment["seed"]) == (4, 1, 2, 42)
    assert len(document["experiment_digest"]) == len(experiment["initial"]) == len(experiment["train"]) == 64
    assert document["source"] == source_fingerprint()
    assert document["versions"]["jax"] == MACHINE.platform.versions["jax"]
    assert document["inventory"]["slots"] == MACHINE.slots
    assert document["notes"] == ["oversubscribed: so much"]


def test_every_role_has_its_fingerprint(described: dict[str, Any], make_rows: MakeRows) -> None:
    assert described["data"] == {
        "train": {"fingerprint": make_rows("train").fingerprint, "rows": 6},
        "validation": {"fingerprint": make_rows("validation").fingerprint, "rows": 6},
        "test": {"fingerprint": make_rows("test").fingerprint, "rows": 6},
        "source": "s",
    }


def test_the_experiment_does_not_know_the_placement(make_request: MakeRequest) -> None:
    one = manifest.of_fit(plan_fit(make_request(), placement()), MACHINE)
    other = manifest.of_fit(plan_fit(make_request(), placement(WorkerRecord(name="z", transport="local", slots=2))), MACHINE)
    assert one["experiment_digest"] == other["experiment_digest"]
    assert one["execution"] != other["execution"]


def test_the_test_rows_do_not_change_the_experiment(make_request: MakeRequest, make_rows: MakeRows) -> None:
    one = manifest.of_fit(plan_fit(make_request(), placement()), MACHINE)
    other = manifest.of_fit(plan_fit(make_request(test=make_rows("test")), placement()), MACHINE)
    assert one["experiment_digest"] == other["experiment_digest"]


def test_members_are_public_names_weights_and_slots(described: dict[str, Any]) -> None:
    execution = described["execution"]
    assert (execution["kind"], execution["dtype"], execution["oversubscribe"]) == ("cluster", "float32", True)
    assert execution["members"][1] == {
        "name": "b", "transport": "socket", "slots": 1, "backend": "cpu", "device": 0, "weight": 3,
    }  # fmt: skip


def test_no_endpoint_user_host_or_path_is_in_it(make_request: MakeRequest) -> None:
    where = placement(WorkerRecord(name="a", transport="local"), PRIVATE)
    request = SimulationRequest(samples=10, seed=1, execution=Local())
    for document in (
        manifest.of_fit(plan_fit(make_request(), where), MACHINE),
        manifest.of_simulation(request, where, MACHINE),
    ):
        text = json.dumps(document)
        private = ["research-peer", "secret", "lab.conf", str(Path.home()), sys.prefix, ".sock"]
        private += [name for name in (socket.gethostname(), getpass.getuser()) if len(name) > 4]
        assert [word for word in private if word in text] == []


def test_a_simulation() -> None:
    request = SimulationRequest(samples=10, seed=1, execution=Local())
    document = json.loads(json.dumps(manifest.of_simulation(request, placement(), MACHINE)))
    assert document["experiment"] == {"samples": 10, "seed": 1, "estimate": "pi"}
    assert document["kind"] == "simulation"


HANDSHAKE = Handshake(
    protocol=1, source="x", phalanx="0", platform="Linux x86_64", python="3.11", jax="0", jaxlib="0", cpu_features="avx",
    slots_asked=1, slots_found=2, self_test="passed", pid=4321, numeric_class="c",
    backends=(BackendFound(name="cpu", devices=("K",), reason=""), BackendFound(name="cuda", devices=(), reason="none")),
)  # fmt: skip


@pytest.fixture
def outcome(make_request: MakeRequest) -> FitOutcome:
    plan = plan_fit(make_request(), placement())
    fitted = FittedParts(
        spec=plan.spec, programs={}, parameters=np.zeros(27, np.float32), scaling=None, source="s"
    )  # fmt: skip
    score = Score(loss=0.5, rows=6, accuracy=1.0)
    return FitOutcome(
        fitted=fitted, digest="d" * 64, level="tolerance", updates=4, history=(EpochRecord(epoch=0, train=score),),
        train=score, validation=None, best_epoch=None, notes=("a note",), manifest={},
        members=(MemberReport(name="a", backend="cpu", device="K", rows=12, updates=4, compute_seconds=0.25),),
        seconds=FitSeconds(setup=1.00000049, updates=2.0, validation=None, total=3.5),
    )  # fmt: skip


def test_afterwards_it_says_who_answered_and_with_what(described: dict[str, Any], outcome: FitOutcome) -> None:
    found = manifest.with_members(outcome, described, {"b": HANDSHAKE}).manifest
    assert (found["level"], found["notes"]) == ("tolerance", ["a note"])
    answered = found["handshakes"]["b"]
    assert (answered["jax"], answered["numeric_class"], answered["backends"]) == ("0", "c", ["cpu"])
    assert answered["pid"] is None
    assert "handshakes" not in described
    json.dumps(found, allow_nan=False)


def test_the_result_of_a_fit(outcome: FitOutcome) -> None:
    document = json.loads(result.to_text(result.of_fit(outcome)))
    assert (document["kind"], document["digest"], document["level"], document["updates"]) == ("fit", "d" * 64, "tolerance", 4)
    assert document["train"] == {"loss": 0.5, "accuracy": 1.0, "rows": 6}
    assert (document["validation"], document["test"]) == (None, None)
    assert document["members"] == [
        {
            "name": "a", "backend": "cpu", "device": "K", "rows": 12, "updates": 4, "compute_seconds": 0.25,
            "resident": None, "losses": None, "incarnation": None,
        }
    ]  # fmt: skip
    assert document["seconds"] == {"setup": 1.0, "updates": 2.0, "validation": None, "total": 3.5}


def test_a_loss_that_overflowed_is_null_in_the_result(outcome: FitOutcome) -> None:
    overflowed = dataclasses.replace(outcome, validation=Score(loss=float("inf"), rows=3, accuracy=0.0))
    assert json.loads(result.to_text(result.of_fit(overflowed)))["validation"]["loss"] is None
