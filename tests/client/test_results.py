"""What comes back, for a person and as a document."""

import json
from collections.abc import Callable

import pytest

from phalanx.commands.regression import coefficients
from phalanx.datasets import iris
from phalanx.results import Evaluation, Fitted, Simulation, describe_member
from phalanx_proto.errors import InvalidRequest
from phalanx_proto.jobs import MemberReport, Score
from phalanx_proto.result import to_text

TEST = Score(loss=0.125, rows=2, accuracy=0.5)


def test_the_scores_of_each_role(make_fitted: Callable[..., Fitted]) -> None:
    fitted = make_fitted(test=TEST)
    assert fitted.train == Evaluation(role="train", rows=6, loss=0.5, accuracy=0.75)
    assert fitted.validation == Evaluation(role="validation", rows=2, loss=0.25, accuracy=1.0)
    assert fitted.test == Evaluation(role="test", rows=2, loss=0.125, accuracy=0.5)
    assert make_fitted().test is None


def test_the_summary_of_a_fit(make_fitted: Callable[..., Fitted]) -> None:
    assert make_fitted(test=TEST).summary().splitlines() == [
        f"digest      {'ab' * 32}",
        "level       bitwise, float32, 3 updates",
        "train       accuracy 0.7500, loss 0.500000, 6 rows",
        "validation  accuracy 1.0000, loss 0.250000, 2 rows (best epoch 1)",
        "test        accuracy 0.5000, loss 0.125000, 2 rows",
        "member      local-1 (cpu, cpu): 12 rows in 3 updates",
        "member      far (cuda, H200): 6 rows in 3 updates",
        "seconds     setup 1.000, updates 2.000, validation 0.500, total 4.000",
        "note        more slots than CPUs",
    ]


def test_the_document_of_a_fit(make_fitted: Callable[..., Fitted]) -> None:
    document = make_fitted(test=TEST).document()
    assert document["kind"] == "fit"
    assert document["digest"] == "ab" * 32
    assert (document["level"], document["dtype"], document["parameters"], document["updates"]) == ("bitwise", "float32", 9, 3)
    assert document["test"] == {"loss": 0.125, "accuracy": 0.5, "rows": 2}
    assert document["seconds"] == {"setup": 1.0, "updates": 2.0, "validation": 0.5, "total": 4.0}
    assert [record["epoch"] for record in document["history"]] == [0, 1, 2]
    assert document["members"][1] == {
        "name": "far", "backend": "cuda", "device": "H200", "rows": 6, "updates": 3, "compute_seconds": None, "resident": None,
        "losses": None, "incarnation": None,
    }  # fmt: skip
    assert make_fitted().document()["test"] is None


def test_the_document_of_a_simulation(make_simulation: Callable[..., Simulation]) -> None:
    document = make_simulation().document()
    assert document["kind"] == "simulation"
    assert (document["samples"], document["hits"], document["estimate"]) == (1_000_000, 785_856, 3.143424)
    assert document["seconds"] == {"setup": 1.0, "work": 0.25, "total": 1.25}
    assert document["members"][0]["samples"] == 1_000_000


def test_a_document_is_written_and_read_back(make_fitted: Callable[..., Fitted]) -> None:
    document = make_fitted(test=TEST).document()
    assert json.loads(to_text(document)) == document
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_text({"loss": float("nan")})


def test_parameters_are_the_callers_own(make_fitted: Callable[..., Fitted]) -> None:
    fitted = make_fitted()
    fitted.parameters[:] = 0
    assert fitted.parameters[3] == 3


def test_only_rows_of_a_partition_are_evaluated(make_fitted: Callable[..., Fitted]) -> None:
    with pytest.raises(InvalidRequest, match=r"parts\.test"):
        make_fitted().evaluate(None)


def test_the_coefficients_of_a_regression(make_fitted: Callable[..., Fitted]) -> None:
    assert coefficients(make_fitted()).startswith("parameters  8 coefficients +0.0000 +1.0000")
    assert coefficients(make_fitted()).endswith("intercept +8.0000")


def test_rows_and_features_are_not_taken_for_each_other(make_fitted: Callable[..., Fitted]) -> None:
    with pytest.raises(InvalidRequest, match="not a Dataset"):
        make_fitted().evaluate(iris())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"take features, such as parts\.test\.x"):
        make_fitted().predict(iris().rows())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="not an array of numbers"):
        make_fitted().predict(["a"])


def test_a_member_that_was_lost_or_never_there_says_so() -> None:
    lost = MemberReport(name="far", backend="cpu", device="cpu", rows=6, updates=3, losses=2, incarnation=3)
    assert describe_member(lost) == "far (cpu, cpu): 6 rows in 3 updates, lost 2 times"
    absent = MemberReport(name="away", backend="cpu", device="", samples=0, losses=0, incarnation=4)
    assert describe_member(absent) == "away (cpu): 0 samples"
