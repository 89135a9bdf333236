"""The public API as the README shows it, from a dataset to a prediction."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import phalanx
from phalanx.dataset import Partition
from phalanx_proto.errors import InvalidRequest
from phalanx_proto.jobs import Progress


@dataclass(frozen=True)
class Story:
    """What the five lines made."""

    parts: Partition
    fitted: phalanx.Fitted


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    # fmt: off
    parts  = phalanx.datasets.iris().partition(validation=0.2, test=0.2, seed=42)         # stratified; roles protected
    model  = phalanx.classifier(phalanx.mlp(4, [8], 3, seed=42), standardize=True, optimizer="adam")
    config = phalanx.training(epochs=40, batch=32, rate=0.01, seed=42, validation=parts.validation)
    fitted = phalanx.fit(model, parts.train, config)                                        # execution=None: this CPU, float64
    # fmt: on
    yield Story(parts, fitted)
    phalanx.shutdown()


def test_the_fit_has_a_digest_and_a_history(story: Story) -> None:
    fitted = story.fitted
    assert len(fitted.digest) == 64 and int(fitted.digest, 16) >= 0
    assert (fitted.level, fitted.updates) == ("bitwise", 40 * 3)
    assert [record.epoch for record in fitted.history] == list(range(40))
    last = fitted.history[-1]
    assert (last.train.rows, last.validation and last.validation.rows) == (90, 30)
    assert last.train.loss < fitted.history[0].train.loss
    assert fitted.parameters.shape == (4 * 8 + 8 + 8 * 3 + 3,)
    assert fitted.parameters.dtype == np.float64


def test_parameters_are_a_copy(story: Story) -> None:
    story.fitted.parameters[:] = 0
    assert np.abs(story.fitted.parameters).max() > 0


def test_members_and_seconds(story: Story) -> None:
    members = story.fitted.members
    assert sum(member.rows or 0 for member in members) == 40 * 90
    assert all(member.backend == "cpu" and member.compute_seconds for member in members)
    seconds = story.fitted.seconds
    assert seconds.validation is not None
    assert seconds.total >= seconds.setup > 0


def test_evaluation_counts_each_row_once(story: Story) -> None:
    score = story.fitted.evaluate(story.parts.test)
    assert (score.role, score.rows) == ("test", 30)
    assert score.accuracy is not None and score.accuracy * 30 == round(score.accuracy * 30)
    assert score.summary() == f"test: accuracy {score.accuracy:.4f}, loss {score.loss:.6f}, 30 rows"
    validation = story.fitted.evaluate(story.parts.validation)
    last = story.fitted.history[-1].validation
    assert last is not None and (validation.loss, validation.accuracy) == (last.loss, last.accuracy)


@pytest.mark.parametrize("rows", [1, 2, 1023, 1024, 1025])
def test_predictions_have_the_shape_of_the_rows(story: Story, rows: int) -> None:
    x = np.resize(story.parts.train.x, (rows, 4))
    labels, outputs = story.fitted.predict(x), story.fitted.outputs(x)
    assert (labels.shape, str(labels.dtype)) == ((rows,), "int32")
    assert (outputs.shape, str(outputs.dtype)) == ((rows, 3), "float64")
    assert np.abs(outputs.sum(axis=1) - 1).max() < 1e-12
    assert (outputs.argmax(axis=1) == labels).all()


def test_one_row_may_be_flat(story: Story) -> None:
    assert story.fitted.predict([5.1, 3.5, 1.4, 0.2]).shape == (1,)


def test_what_cannot_be_evaluated_or_predicted_from_is_refused(story: Story) -> None:
    with pytest.raises(InvalidRequest, match="this model takes"):
        story.fitted.predict(np.zeros((2, 5)))
    with pytest.raises(InvalidRequest, match="only finite values"):
        story.fitted.predict([[0.0, 0.0, 0.0, np.nan]])
    with pytest.raises(InvalidRequest, match=r"takes the rows of a partition"):
        story.fitted.evaluate(None)


def test_reprs_are_short_and_say_what_it_is(story: Story) -> None:
    fitted = story.fitted
    assert repr(fitted).startswith(f"Fitted(digest={fitted.digest[:12]}…, level=bitwise, updates=120, members=[local-1")
    assert repr(story.parts) == "Partition(train=<90 rows>, validation=<30 rows>, test=<30 rows>)"
    assert len(repr(fitted)) < 200


def test_the_summary_is_for_people(story: Story) -> None:
    lines = story.fitted.summary().splitlines()
    assert lines[0] == f"digest      {story.fitted.digest}"
    assert lines[1] == "level       bitwise, float64, 120 updates"
    assert lines[2].startswith("train       accuracy ") and lines[3].startswith("validation  accuracy ")
    assert lines[4].startswith("member      local-1 (cpu, ") and lines[-1].startswith("seconds     setup ")


def test_the_same_fit_gives_the_same_digest(story: Story) -> None:
    model = phalanx.classifier(phalanx.mlp(4, [8], 3, seed=42), standardize=True, optimizer="adam")
    config = phalanx.training(epochs=40, batch=32, rate=0.01, seed=42, validation=story.parts.validation)
    again = phalanx.fit(model, story.parts.train, config, reproducible="bitwise")
    assert again.digest == story.fitted.digest
    assert [record.validation for record in again.history] == [record.validation for record in story.fitted.history]


def test_the_best_epoch_is_kept(story: Story) -> None:
    model = phalanx.classifier(phalanx.mlp(4, [8], 3, seed=42), standardize=True, optimizer="adam")
    config = phalanx.training(epochs=6, batch=32, rate=0.5, seed=1, validation=story.parts.validation, keep_best=True)
    fitted = phalanx.fit(model, story.parts.train, config)
    losses = [record.validation.loss for record in fitted.history if record.validation]
    best = fitted.outcome.best_epoch
    assert best == int(np.argmin(losses)) != len(losses) - 1
    assert fitted.evaluate(story.parts.validation).loss == losses[best]


def test_progress_and_output(story: Story, tmp_path: Path) -> None:
    told: list[Progress] = []
    parts = story.parts
    model = phalanx.classifier(phalanx.mlp(4, [], 3, seed=1), standardize=True)
    config = phalanx.training(epochs=3, batch=30, rate=0.1, validation=parts.validation)
    fitted = phalanx.fit(model, parts.train, config, test=parts.test, output=tmp_path / "job", progress=told.append)
    assert [told[0].phase, told[-1].phase] == ["starting", "updates"]
    assert (told[-1].done, told[-1].total) == (9, 9)
    document = json.loads((tmp_path / "job" / "result.json").read_text())
    assert (document["kind"], document["digest"], document["updates"]) == ("fit", fitted.digest, 9)
    assert [document[role]["rows"] for role in ("train", "validation", "test")] == [90, 30, 30]
    assert document["test"]["loss"] == fitted.evaluate(parts.test).loss
    assert json.loads((tmp_path / "job" / "status.json").read_text())["state"] == "COMPLETE"
    assert json.loads((tmp_path / "job" / "run-manifest.json").read_text()) == fitted.manifest


def test_a_simulation(story: Story, tmp_path: Path) -> None:
    simulation = phalanx.monte_carlo(samples=999_983, seed=7, output=tmp_path / "job")
    assert (simulation.hits, simulation.samples) == (785_268, 999_983)
    assert simulation.estimate == 4 * 785_268 / 999_983
    assert repr(simulation) == f"Simulation(estimate={simulation.estimate!r}, hits=785268, samples=999983)"
    assert simulation.summary().splitlines()[1] == "hits        785,268 of 999,983 samples"
    document = json.loads((tmp_path / "job" / "result.json").read_text())
    assert (document["hits"], document["estimate"]) == (785_268, simulation.estimate)


@pytest.mark.parametrize(
    ("samples", "seed", "hits"), [(10**6, 42, 785_856), (10**7, 42, 7_852_403), (1_000_001, 1_099_511_627_781, 785_553)]
)
def test_known_answers(story: Story, samples: int, seed: int, hits: int) -> None:
    assert phalanx.monte_carlo(samples=samples, seed=seed).hits == hits
