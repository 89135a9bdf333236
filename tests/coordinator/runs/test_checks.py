"""Every refusal of a request, before anything starts, and all of them at once."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from phalanx_coordinator.runs import checks
from phalanx_proto import tensors
from phalanx_proto.errors import InvalidExperiment, InvalidRequest, ProtectedRole
from phalanx_proto.execution import Local
from phalanx_proto.experiment import Dense, ModelSpec, OptimizerSpec, ProgramSpec, Rows
from phalanx_proto.jobs import FitRequest, FittedParts, SimulationRequest

MakeRows = Callable[..., Rows]
MakeRequest = Callable[..., FitRequest]
NAN, INF = float("nan"), float("inf")


def problems(request: FitRequest) -> list[str]:
    with pytest.raises(InvalidExperiment) as caught:
        checks.check_fit(request)
    return caught.value.problems


def test_a_sound_request_passes(make_request: MakeRequest, make_rows: MakeRows) -> None:
    checks.check_fit(make_request())
    checks.check_fit(make_request(validation=make_rows("validation"), test=make_rows("test"), keep_best=True))
    checks.check_fit(make_request(train=make_rows("all")))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"block": 5}, r"block must be 1 to batch \(4\), not 5"),
        ({"block": 0}, "block must be 1 to batch"),
        ({"seed": -1}, "seed must be in"),
        ({"seed": 1 << 64}, "seed must be in"),
        ({"keep_best": True}, "keep_best needs validation rows"),
        ({"epochs": 1 << 31, "batch": 1}, "are more than 2147483647 updates"),
        ({"initial": np.zeros(3)}, "3 initial values were given for 27 parameters"),
        ({"initial": np.full(27, NAN)}, "an initial value is not finite"),
        ({"optimizer": OptimizerSpec(rate=0.0)}, "rate must be positive and finite, not 0"),
        ({"optimizer": OptimizerSpec(rate=-1.0)}, "rate must be positive"),
        ({"optimizer": OptimizerSpec(rate=INF)}, "rate must be positive and finite, not inf"),
        ({"optimizer": OptimizerSpec(rate=NAN)}, "rate must be positive and finite, not nan"),
        ({"optimizer": OptimizerSpec(momentum=1.0)}, r"momentum must be in \[0, 1\), not 1"),
        ({"optimizer": OptimizerSpec(beta1=-0.1)}, "beta1 must be in"),
        ({"optimizer": OptimizerSpec(beta2=NAN)}, "beta2 must be in"),
        ({"optimizer": OptimizerSpec(epsilon=0.0)}, "epsilon must be positive"),
        ({"optimizer": OptimizerSpec(clip=0.0)}, "clip must be positive"),
        ({"loss": "logistic"}, "the loss logistic takes 1 output, not 3"),
        ({"model": ModelSpec(layers=("tanh",))}, "the model has no layers"),
        (
            {"model": ModelSpec(layers=(Dense(inputs=2, outputs=4), Dense(inputs=5, outputs=3)))},
            "a layer of 4 outputs cannot feed one of 5 inputs",
        ),
        (
            {"model": ModelSpec(layers=(Dense(inputs=2, outputs=1),)), "initial": np.zeros(3)},
            "cross_entropy takes one output a class",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused(make_request: MakeRequest, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidExperiment, match=said):
        checks.check_fit(make_request(**changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"x": np.zeros((6, 3))}, "the train rows have 3 features, the model takes 2"),
        ({"x": np.array([[0.0, 1.0], [NAN, 0.0], [0.0, INF]] * 2)}, "train row 1, feature 0 is nan; only finite"),
        ({"x": np.array([[0.0, -INF]] * 6)}, "train row 0, feature 1 is -inf"),
        ({"y": np.array([0, 1, 2, 3, 0, 1], np.int32)}, "train labels go from 0 to 3; this model knows 0 to 2"),
        ({"y": np.array([0, 1, 2, -1, 0, 1], np.int32)}, "train labels go from -1 to 2"),
        ({"y": np.zeros(6)}, "not one integer label a row"),
        ({"y": np.zeros((6, 1), np.int32)}, "not one integer label a row"),
        ({"y": np.zeros(5, np.int32)}, "there are 5 train targets for 6 rows"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, np.int32)}, "there are no train rows"),
    ],
)
def test_rows_that_cannot_be_fitted_are_refused(
    make_request: MakeRequest, make_rows: MakeRows, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidExperiment, match=said):
        checks.check_fit(make_request(train=make_rows(**changed)))


def test_features_too_large_for_a_deviation_are_refused_where_one_is_needed(
    make_request: MakeRequest, make_rows: MakeRows
) -> None:
    large = make_rows(x=np.full((6, 2), 1e200))
    checks.check_fit(make_request(train=large))
    assert problems(make_request(train=large, standardize=True)) == [
        "the train rows hold 1e+200; above 1e+150 no deviation can be computed"
    ]


def test_float_targets_are_checked(make_request: MakeRequest, make_rows: MakeRows) -> None:
    wanted: dict[str, Any] = {"loss": "mse", "float_targets": True}
    checks.check_fit(make_request(train=make_rows(y=np.zeros((6, 3))), **wanted))
    with pytest.raises(InvalidExperiment, match=r"float64\[6, 2\], the model gives float\[6, 3\]"):
        checks.check_fit(make_request(train=make_rows(y=np.zeros((6, 2))), **wanted))
    with pytest.raises(InvalidExperiment, match="a train target is not finite"):
        checks.check_fit(make_request(train=make_rows(y=np.full((6, 3), NAN)), **wanted))
    with pytest.raises(InvalidExperiment, match="float targets are fitted with the loss mse"):
        checks.check_fit(make_request(train=make_rows(y=np.zeros((6, 3))), float_targets=True))


def test_logistic_labels_are_zero_and_one(make_request: MakeRequest) -> None:
    single = ModelSpec(layers=(Dense(inputs=2, outputs=1),))
    with pytest.raises(InvalidExperiment, match="this model knows 0 to 1"):
        checks.check_fit(make_request(model=single, initial=np.zeros(3), loss="logistic"))


def test_all_problems_are_listed_at_once(make_request: MakeRequest, make_rows: MakeRows) -> None:
    found = problems(
        make_request(
            epochs=0,
            seed=-1,
            optimizer=OptimizerSpec(rate=0.0),
            keep_best=True,
            train=make_rows(x=np.zeros((6, 3))),
            test=make_rows("test", y=np.full(6, 9, np.int32), source="another"),
        )
    )
    for words in ("epochs", "seed", "rate", "keep_best", "3 features", "test labels go from 9", "another dataset"):
        assert sum(words in text for text in found) == 1, words
    assert len(found) == 7


def test_held_out_rows_come_from_the_same_dataset(make_request: MakeRequest, make_rows: MakeRows) -> None:
    for role in ("validation", "test"):
        request = make_request(**{role: make_rows(role, source="another")})
        assert problems(request) == [f"the {role} rows come from another dataset than the training rows; use one partition"]


@pytest.mark.parametrize("role", ["validation", "test"])
def test_protected_rows_are_not_fitted_on(make_request: MakeRequest, make_rows: MakeRows, role: str) -> None:
    with pytest.raises(ProtectedRole, match=f"{role} rows cannot be fitted on; pass the partition's train rows"):
        checks.check_fit(make_request(train=make_rows(role)))


@pytest.mark.parametrize("role", ["train", "all", "test"])
def test_only_validation_rows_are_used_for_validation(make_request: MakeRequest, make_rows: MakeRows, role: str) -> None:
    with pytest.raises(ProtectedRole, match=f"{role} rows cannot be used for validation"):
        checks.check_fit(make_request(validation=make_rows(role)))


@pytest.mark.parametrize("role", ["train", "all", "validation"])
def test_only_test_rows_are_used_for_the_test(make_request: MakeRequest, make_rows: MakeRows, role: str) -> None:
    with pytest.raises(ProtectedRole, match=f"{role} rows cannot be used for the test"):
        checks.check_fit(make_request(test=make_rows(role)))


def test_a_forged_role_is_refused(make_request: MakeRequest, make_rows: MakeRows) -> None:
    forged = dataclasses.replace(make_rows("test"), role="train")
    with pytest.raises(ProtectedRole, match="are not the train rows that their fingerprint names"):
        checks.check_fit(make_request(train=forged))
    forged = dataclasses.replace(make_rows("test"), role="validation")
    with pytest.raises(ProtectedRole, match="cannot be used for validation"):
        checks.check_fit(make_request(validation=forged))


def test_changed_values_are_refused(make_request: MakeRequest, make_rows: MakeRows) -> None:
    rows = make_rows()
    for changed in ({"x": rows.x + 1.0}, {"y": rows.y[::-1].copy()}):
        with pytest.raises(ProtectedRole):
            checks.check_fit(make_request(train=dataclasses.replace(rows, **changed)))


def fitted_parts(loss: Any = "cross_entropy", float_targets: bool = False, outputs: int = 3) -> FittedParts:
    model = ModelSpec(layers=(Dense(inputs=2, outputs=outputs),))
    spec = ProgramSpec(
        model=model, loss=loss, float_targets=float_targets, optimizer=OptimizerSpec(), dtype="float64", block=2,
        score_block=8,
    )  # fmt: skip
    return FittedParts(spec=spec, programs={}, parameters=np.zeros(model.parameters), scaling=None, source="s")


@pytest.mark.parametrize("role", ["train", "validation", "test", "all"])
def test_rows_of_any_role_may_be_evaluated(make_rows: MakeRows, role: str) -> None:
    checks.check_evaluation(fitted_parts(), make_rows(role))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"x": np.zeros((6, 3))}, "the rows have 3 features, the model takes 2"),
        ({"x": np.full((6, 2), NAN)}, "a feature is not finite"),
        ({"y": np.full(6, 3, np.int32)}, "a label lies outside 0 to 2"),
        ({"y": np.full(6, -1, np.int32)}, "a label lies outside 0 to 2"),
        ({"y": np.zeros((6, 3))}, "labels where the model gives values, or the reverse"),
        ({"y": np.zeros(4, np.int32)}, "there are 4 targets for 6 rows"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, np.int32)}, "no train rows to evaluate on"),
        ({"y": np.zeros((6, 1), np.int32)}, r"the labels are \[6, 1\], not one a row"),
        ({"y": np.array(1, np.int32)}, "no train rows to evaluate on"),
    ],
)
def test_rows_that_cannot_be_evaluated_are_refused(make_rows: MakeRows, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        checks.check_evaluation(fitted_parts(), make_rows(**changed))


def test_labels_cannot_be_evaluated_on_float_outputs(make_rows: MakeRows) -> None:
    with pytest.raises(InvalidRequest, match="or the reverse"):
        checks.check_evaluation(fitted_parts("mse", float_targets=True), make_rows())
    with pytest.raises(InvalidRequest, match=r"targets are \[6, 2\], the model gives \[6, 3\]"):
        checks.check_evaluation(fitted_parts("mse", float_targets=True), make_rows(y=np.zeros((6, 2))))


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.zeros((4, 3)), r"features \[4, 3\] were given; this model takes \[rows, 2\]"),
        (np.zeros(2), r"features \[2\] were given"),
        (np.zeros((0, 2)), r"features \[0, 2\] were given"),
        (np.array([[0.0, 0.0], [0.0, INF]]), "row 1, feature 1 is inf"),
    ],
)
def test_features_that_cannot_be_predicted_from_are_refused(x: Any, said: str) -> None:
    checks.check_features(fitted_parts(), np.zeros((4, 2)))
    with pytest.raises(InvalidRequest, match=said):
        checks.check_features(fitted_parts(), x)


@pytest.mark.parametrize("samples", [0, -1, 10**12 + 1])
def test_samples_are_limited(samples: int) -> None:
    with pytest.raises(InvalidExperiment, match=r"samples must be 1 to 10\*\*12"):
        checks.check_simulation(SimulationRequest(samples=samples, seed=0, execution=Local()))


def test_all_problems_of_a_simulation_are_listed() -> None:
    checks.check_simulation(SimulationRequest(samples=10**12, seed=(1 << 64) - 1, execution=Local()))
    with pytest.raises(InvalidExperiment) as caught:
        checks.check_simulation(SimulationRequest(samples=0, seed=1 << 64, execution=Local()))
    assert len(caught.value.problems) == 2


def test_the_fingerprint_is_that_of_values_and_role(make_rows: MakeRows) -> None:
    rows = make_rows("test")
    assert rows.fingerprint == tensors.fingerprint(rows.x, rows.y, tag="test")
    assert rows.fingerprint != tensors.fingerprint(rows.x, rows.y, tag="train")
