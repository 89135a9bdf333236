"""Requests and outcomes survive being taken apart into JSON and arrays, and nothing that was changed on the way is believed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx_proto import arrays, outcomes, requests, tensors
from phalanx_proto.errors import CorruptData, InvalidExperiment, InvalidRequest
from phalanx_proto.execution import Cluster, Device, Execution, Local
from phalanx_proto.experiment import Dense, ModelSpec, OptimizerSpec, ProgramSpec
from phalanx_proto.jobs import (
    EpochRecord,
    FitOutcome,
    FitRequest,
    FitSeconds,
    FittedParts,
    MemberReport,
    Scaling,
    Score,
    SimulationOutcome,
    SimulationRequest,
    SimulationSeconds,
)
from tests.coordinator.conftest import request_of, rows_of


def through_json(document: Any) -> Any:
    return json.loads(json.dumps(document, allow_nan=False))


def same(a: Any, b: Any) -> bool:
    """Equal values, arrays bit by bit; dataclasses that hold arrays have no equality of their own."""
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        names = [field.name for field in dataclasses.fields(a)]
        return type(a) is type(b) and all(same(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize(
    "execution",
    [Local(workers=3, dtype="float32"), Device(backend="cuda", ordinal=1, chunk=7), Cluster(file=Path("/a/group.toml"))],
)
def test_a_fit_comes_back(execution: Execution) -> None:
    model = ModelSpec(layers=(Dense(inputs=2, outputs=4), "relu", Dense(inputs=4, outputs=3)))
    request = request_of(
        model=model, optimizer=OptimizerSpec(name="momentum", clip=0.5), validation=rows_of("validation"), keep_best=True,
        seed=2**64 - 1, execution=execution, reproducible="bitwise", on_loss="rebalance",
    )  # fmt: skip
    document, held = requests.to_document(request)
    assert same(requests.from_document(through_json(document), held), request)
    blobs = {digest: bytes(view) for digest, view in arrays.as_blobs(held).items()}
    assert same(requests.from_document(document, arrays.from_blobs(through_json(document), blobs)), request)


def test_a_simulation_comes_back() -> None:
    request = SimulationRequest(samples=10**12, seed=7, execution=Local(workers=2, chunk=5))
    document, held = requests.to_document(request)
    assert (requests.from_document(through_json(document), held), held) == (request, {})


def test_a_cluster_file_is_found_from_every_working_directory() -> None:
    document = requests.execution_to_document(Cluster(file=Path("group.toml")))
    assert document["file"] == str(Path.cwd() / "group.toml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, a: a.update({"train.x": a["train.x"] + 1}), "the array train.x is not the one"),
        (lambda d, a: a.pop("initial"), "the array initial is missing"),
        (lambda d, a: d["rows"]["train"].update(role="all"), "the train rows are not those"),
        (lambda d, a: d.pop("arrays"), "which arrays belong to it"),
    ],
)
def test_what_was_changed_is_not_believed(change: Any, message: str) -> None:
    document, held = requests.to_document(request_of())
    change(document, held)
    with pytest.raises(CorruptData, match=message):
        requests.from_document(document, held)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format=2), "has the format 2, and this version reads 1"),
        (lambda d: d.update(kind="search"), "of the kind 'search' is not known"),
        (lambda d: d["values"].update(novel=1), "novel"),
        (lambda d: d["values"].pop("epochs"), "epochs"),
        (lambda d: d["execution"].update(kind="moon"), "'moon' is not known"),
    ],
)
def test_what_another_version_wrote_is_refused(change: Any, message: str) -> None:
    document, held = requests.to_document(request_of())
    change(document)
    with pytest.raises(InvalidRequest, match=message):
        requests.from_document(document, held)


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        (lambda d: d["values"].update(epochs=True), ["epochs must be a whole number of 64 bits, not True"]),
        (lambda d: d["values"].update(batch=4.0), ["batch must be a whole number of 64 bits, not 4.0"]),
        (lambda d: d["values"].update(shuffle=1), ["shuffle must be true or false, not 1"]),
        (lambda d: d["values"].update(reproducible="Bitwise"), ["reproducible must be one of any, bitwise, not 'Bitwise'"]),
        (lambda d: d["values"].update(on_loss="ignore", block="all", checkpoint_every=1.5), [
            "block must be a whole number of 64 bits or 'auto', not 'all'",
            "on_loss must be one of abort, rebalance, not 'ignore'",
            "checkpoint_every must be a whole number of 64 bits or null, not 1.5",
        ]),
        (lambda d: d["optimizer"].update(name="Adam", rate="1"), [
            "optimizer name must be one of sgd, momentum, adam, not 'Adam'", "optimizer rate must be a number, not '1'",
        ]),
        (lambda d: d.update(model={"layers": [{"inputs": "2", "outputs": 3}, "swish", 7]}), [
            "layer 0 inputs must be a whole number of 64 bits, not '2'",
            "layer 1 must be a dense layer or one of tanh, relu, sigmoid, not 'swish'",
            "layer 2 must be a dense layer or one of tanh, relu, sigmoid, not 7",
        ]),
        (lambda d: d.update(model=[]), ["the model has no layers that can be read"]),
        (lambda d: d.update(values=7, rows=None), [
            "the request must be an object with names and values, not 7", "there are no training rows",
        ]),
        (lambda d: d["rows"].update(train="x"), [
            "the role of the train rows must be one of train, validation, test, all, not None",
            "the fingerprint of the train rows must be a text, not None",
            "the source of the train rows must be a text, not None",
        ]),
        (lambda d: d["execution"].update(workers=True), ["execution workers must be a whole number of 64 bits, not True"]),
        (lambda d: d["execution"].update(chunk=0), ["execution chunk must be at least 1, not 0"]),
        (lambda d: d.update(execution={"kind": ["local"]}), [
            "an execution of the kind a list is not known here; use the version that wrote it",
        ]),
        (lambda d: d.update(execution={"kind": "cluster", "file": "a\0b"}), ["execution file must be a path, not 'a\\x00b'"]),
        (lambda d: d.pop("execution"), ["the execution is missing"]),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_told_with_all_others(change: Any, problems: list[str]) -> None:
    document, held = requests.to_document(request_of())
    change(document)
    with pytest.raises(InvalidExperiment) as refused:
        requests.from_document(document, held)
    assert refused.value.problems == problems


@pytest.mark.parametrize("wrong", [1.5, True, "10", None, 1 << 70])
def test_numbers_of_a_simulation_are_whole(wrong: Any) -> None:
    document, held = requests.to_document(SimulationRequest(samples=10, seed=7, execution=Local()))
    for name in ("samples", "seed"):
        with pytest.raises(InvalidExperiment, match=f"{name} must be a whole number"):
            requests.from_document({**document, "values": {**document["values"], name: wrong}}, held)


def test_a_whole_number_for_a_float_is_the_same_experiment() -> None:
    document, held = requests.to_document(request_of(optimizer=OptimizerSpec(rate=1.0)))
    document["optimizer"]["rate"] = 1
    assert repr(requests.fit_from_document(document, held).optimizer.rate) == "1.0"


@pytest.mark.parametrize("kind", [[], {}, None, 7])
def test_a_kind_that_is_no_text_is_refused(kind: Any) -> None:
    document, held = requests.to_document(request_of())
    with pytest.raises(InvalidRequest, match="is not known here"):
        requests.from_document({**document, "kind": kind}, held)


@pytest.mark.parametrize("x", [np.zeros(6, np.int32), np.zeros((), np.float64), np.zeros((6, 2), np.float32)])
def test_rows_of_another_kind_are_refused(x: Any) -> None:
    rows = dataclasses.replace(rows_of(), x=x)
    rows = dataclasses.replace(rows, fingerprint=tensors.fingerprint(rows.x, rows.y, tag="train"))
    document, held = requests.to_document(request_of(train=rows))
    with pytest.raises(InvalidRequest, match="the train rows must be x float64"):
        requests.from_document(document, held)


def fit_outcome(**changed: Any) -> FitOutcome:
    spec = ProgramSpec(
        model=ModelSpec(layers=(Dense(inputs=2, outputs=3), "tanh", Dense(inputs=3, outputs=3))), loss="cross_entropy",
        float_targets=False, optimizer=OptimizerSpec(), dtype="float32", block=2, score_block=4,
    )  # fmt: skip
    scaling = Scaling(mean=np.array([1.0, 2.0]), scale=np.array([0.5, 0.25]))
    parts = FittedParts(
        spec=spec, programs={"score": b"\0S", "predict": b"P" * 100}, parameters=np.arange(21, dtype=np.float32),
        scaling=scaling, source="s",
    )  # fmt: skip
    score = Score(loss=0.1 + 0.2, rows=6, accuracy=0.75)
    sound = FitOutcome(
        fitted=parts, digest=tensors.digest(parts.parameters), level="bitwise", updates=3,
        history=(EpochRecord(epoch=0, train=score, validation=Score(loss=float("inf"), rows=2)),), train=score,
        validation=None, best_epoch=0, members=(MemberReport(name="a", backend="cpu", device="cpu", rows=1, updates=3),),
        seconds=FitSeconds(setup=1.0, updates=2.0, validation=None, total=3.5), notes=("a note",), manifest={"format": 1},
    )  # fmt: skip
    return dataclasses.replace(sound, **changed)


def test_the_outcome_of_a_fit_comes_back() -> None:
    outcome = fit_outcome()
    document, held = outcomes.to_document(outcome)
    assert same(outcomes.from_document(through_json(document), held), outcome)


def test_the_outcome_of_a_simulation_comes_back() -> None:
    outcome = SimulationOutcome(
        samples=4, hits=3, members=(MemberReport(name="a", backend="cpu", device="cpu", samples=4),), notes=(),
        seconds=SimulationSeconds(setup=0.1, work=0.2, total=0.3), manifest={"kind": "simulation"},
    )  # fmt: skip
    document, held = outcomes.to_document(outcome)
    assert outcomes.from_document(through_json(document), held) == outcome


def test_parameters_that_the_digest_does_not_name_are_not_believed() -> None:
    document, held = outcomes.to_document(fit_outcome(digest="ab" * 32))
    with pytest.raises(CorruptData, match="not those that the result's digest names"):
        outcomes.from_document(document, held)


def test_a_result_of_another_version_is_refused() -> None:
    document, held = outcomes.to_document(fit_outcome())
    with pytest.raises(InvalidRequest, match="cannot be read here"):
        outcomes.from_document({**document, "format": 2}, held)
    changes: list[dict[str, Any]]
    changes = [{"values": {}}, {"kind": []}, {"train": None}, {"history": [{"epoch": 0, "train": None}]}]
    for change in changes:
        with pytest.raises(InvalidRequest, match="cannot be read"):
            outcomes.from_document({**document, **change}, held)


def test_every_field_of_a_request_is_in_the_document() -> None:
    document, _ = requests.to_document(request_of())
    known = {*document["values"], *document["rows"], "model", "initial", "optimizer", "execution"}
    assert known == {field.name for field in dataclasses.fields(FitRequest)}
