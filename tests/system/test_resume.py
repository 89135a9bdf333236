"""A run that goes on from a checkpoint ends in the digest, the history and the best epoch of the one that was not broken off.

One experiment, with a checkpoint after each of its updates, written on one place and gone on from on others.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx_coordinator.checkpoints import store as checkpoint_store
from phalanx_coordinator.checkpoints.checkpoint import Checkpoint
from phalanx_coordinator.checkpoints.store import CheckpointStore
from phalanx_proto.errors import CheckpointRefused
from phalanx_proto.execution import Execution
from phalanx_proto.jobs import FitOutcome, SimulationRequest
from tests.system.durable import fit, fit_request, simulate
from tests.system.groups import write_group

UPDATES = 9
HITS = 785_856
"""Of a million samples of seed 42 (DESIGN §3.10)."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Every checkpoint is kept in it, and not only the newest two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_store, "KEPT", 100)
        yield tmp_path_factory.mktemp("resume")
    phalanx.shutdown()


@pytest.fixture(scope="module")
def unbroken() -> FitOutcome:
    return fit(fit_request())


def checkpoints_of(output: Path) -> list[Checkpoint]:
    """All that a fit left behind, the first first."""
    store = CheckpointStore(output / "checkpoints")
    return [store._read(name) for name in store._names()]


@pytest.fixture(scope="module")
def alone(folder: Path, unbroken: FitOutcome) -> list[Checkpoint]:
    """The checkpoints of one engine, after each update."""
    outcome = fit(fit_request(checkpoint_every=1), folder / "alone")
    same(outcome, unbroken)
    return checkpoints_of(folder / "alone")


def same(outcome: FitOutcome, unbroken: FitOutcome) -> None:
    """All that may not depend on what happened on the way."""
    for name in ("digest", "history", "best_epoch", "train", "validation", "test", "level", "updates"):
        assert getattr(outcome, name) == getattr(unbroken, name), name
    assert sum(member.rows or 0 for member in outcome.members) == 3 * len(fit_request().train), "carried from part to part"


def test_there_is_one_after_each_update_but_the_last(alone: list[Checkpoint]) -> None:
    assert [checkpoint.update for checkpoint in alone] == list(range(1, UPDATES))
    assert {checkpoint.level for checkpoint in alone} == {"bitwise"}


def test_resumed_again_and_again(alone: list[Checkpoint], unbroken: FitOutcome, folder: Path) -> None:
    """Each part writes one checkpoint, from which the next one goes on; the seconds of all are added up."""
    checkpoint, seconds = alone[0], 0.0
    for part in range(2, 5):
        output = folder / f"part-{part}"
        outcome = fit(fit_request(checkpoint_every=2), output, checkpoint)
        same(outcome, unbroken)
        assert outcome.seconds.updates > seconds
        checkpoint = next(found for found in checkpoints_of(output) if found.update == 2 * (part - 1))
        seconds = checkpoint.state["seconds"]["updates"]


@pytest.mark.parametrize(
    ("changed", "field"),
    [({"seed": 4}, "experiment"), ({"epochs": 4}, "experiment"), ({"execution": phalanx.local(1, dtype="float32")}, "dtype")],
)
def test_another_experiment_is_refused_before_anything_is_made(
    alone: list[Checkpoint], tmp_path: Path, changed: dict[str, Any], field: str
) -> None:
    with pytest.raises(CheckpointRefused) as caught:
        fit(fit_request(**changed), tmp_path / "output", alone[2])
    assert caught.value.details["field"] == field
    assert not (tmp_path / "output").exists()


def test_a_tolerance_stays_a_tolerance(alone: list[Checkpoint], unbroken: FitOutcome) -> None:
    rough = dataclasses.replace(alone[4], level="tolerance")
    outcome = fit(fit_request(reproducible="any"), resume=rough)
    assert outcome.level == "tolerance" and outcome.digest == unbroken.digest


def test_a_fit_that_keeps_nothing_but_what_its_policy_says(folder: Path, unbroken: FitOutcome) -> None:
    """By default the first epoch of this short fit has one, and then nothing is worth it."""
    same(fit(fit_request(), folder / "default"), unbroken)
    assert 3 in [checkpoint.update for checkpoint in checkpoints_of(folder / "default")]


def simulation(execution: Execution) -> SimulationRequest:
    return SimulationRequest(samples=10**6, seed=42, execution=execution)


@pytest.fixture(scope="module")
def counted(folder: Path) -> list[Checkpoint]:
    """The checkpoints of a simulation, one after each chunk but the last."""
    request = dataclasses.replace(simulation(phalanx.local(workers=1, chunk=99_999)), checkpoint_every=1)
    assert simulate(request, folder / "counted").hits == HITS
    written = checkpoints_of(folder / "counted")
    assert [checkpoint.update for checkpoint in written] == [99_999 * n for n in range(1, 11)]
    return written


def test_another_simulation_is_refused(counted: list[Checkpoint]) -> None:
    other = dataclasses.replace(simulation(phalanx.local(workers=1)), seed=43)
    with pytest.raises(CheckpointRefused, match="belongs to another experiment"):
        simulate(other, resume=counted[0])


@pytest.fixture(
    scope="module",
    params=["one engine", "two engines", "local and daemon", pytest.param("daemons alone", marks=pytest.mark.slow)],
)
def place(
    request: pytest.FixtureRequest, folder: Path, alone: list[Checkpoint], counted: list[Checkpoint]
) -> Iterator[Execution]:
    """Where it goes on: started and warm."""
    places: dict[str, Callable[[], Execution]] = {
        "one engine": lambda: phalanx.local(workers=1, chunk=300_000),
        "two engines": lambda: phalanx.local(workers=2),
        "local and daemon": lambda: write_group(folder, [("local", 1.0), ("socket", 2.0)], chunk=400_000),
        "daemons alone": lambda: write_group(folder, [("socket", 7.0), ("socket", 1.0), ("socket", 1.0)]),
    }
    execution = places[request.param]()
    fit(fit_request(execution=execution))
    yield execution
    phalanx.shutdown()


def test_it_goes_on_from_each_update(place: Execution, alone: list[Checkpoint], unbroken: FitOutcome) -> None:
    for checkpoint in alone:
        outcome = fit(fit_request(execution=place), resume=checkpoint)
        same(outcome, unbroken)
        assert f"resumed after update {checkpoint.update}, from a checkpoint" in outcome.notes


def bits_of(checkpoint: Checkpoint) -> tuple[Any, ...]:
    arrays = {name: array.tobytes() for name, array in checkpoint.arrays.items()}
    return checkpoint.update, checkpoint.state["best"], arrays


def test_who_computed_a_checkpoint_leaves_no_trace_in_it(
    place: Execution, alone: list[Checkpoint], unbroken: FitOutcome, tmp_path: Path
) -> None:
    """So what goes on from one place's checkpoints goes on from every place's."""
    same(fit(fit_request(execution=place, checkpoint_every=1), tmp_path / "fit"), unbroken)
    written = checkpoints_of(tmp_path / "fit")
    assert [bits_of(found) for found in written] == [bits_of(found) for found in alone]
    same(fit(fit_request(execution=place), resume=written[4]), unbroken)


def test_a_simulation_goes_on_in_the_chunks_it_was_cut_into(
    place: Execution, counted: list[Checkpoint], tmp_path: Path
) -> None:
    request = dataclasses.replace(simulation(place), checkpoint_every=300_000)
    assert simulate(request, tmp_path / "count").hits == HITS
    for checkpoint in [*counted[::3], *checkpoints_of(tmp_path / "count")]:
        outcome = simulate(simulation(place), resume=checkpoint)
        assert (outcome.samples, outcome.hits) == (10**6, HITS)
        assert sum(member.samples or 0 for member in outcome.members) == 10**6
