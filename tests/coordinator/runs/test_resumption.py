"""What a run may go on from: each thing that differs has an error of its own, and says what to do."""

import dataclasses
from typing import Any

import pytest

from phalanx_coordinator.checkpoints.checkpoint import Origin
from phalanx_coordinator.runs.resumption import Wanted, resume_from
from phalanx_proto.errors import CheckpointRefused
from tests.coordinator.checkpoint_builders import HERE, checkpoint_of


def wanted(**changed: Any) -> Wanted:
    sound = Wanted(kind="fit", experiment="e" * 64, dtype="float32", origin=HERE)
    return dataclasses.replace(sound, **changed)


def here(**changed: Any) -> Origin:
    return dataclasses.replace(HERE, **changed)


OTHER_CPU = here(numeric={**HERE.numeric, "features": "x86-64-v4: avx512f"})


def test_the_same_experiment_on_the_same_machine_goes_on_bitwise() -> None:
    found = resume_from(checkpoint_of(9, notes=("checkpoint-12 is damaged",)), wanted(reproducible="bitwise"))
    assert found.level == "bitwise" and found.update == 9
    assert found.notes == ("checkpoint-12 is damaged", "resumed after update 9, from a checkpoint")


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"experiment": "f" * 64}, "experiment", "belongs to another experiment: resume it with the request"),
        ({"kind": "simulation"}, "experiment", "belongs to another experiment"),
        ({"dtype": "float64"}, "dtype", "is in float32, and this execution computes in float64: resume it on one of float32"),
        (
            {"origin": here(versions={**HERE.versions, "jax": "0.12.0"})},
            "versions",
            r"jax 0\.10\.1, here is 0\.12\.0: install jax==",
        ),
        ({"origin": here(versions={**HERE.versions, "jaxlib": None})}, "versions", "install jaxlib==0.10.1 and resume again"),
        ({"origin": here(source="6" * 64)}, "source", "other numeric sources .*fingerprint 555555555555; here .*666666666666"),
        ({"origin": OTHER_CPU, "reproducible": "bitwise"}, "numeric class", "features: x86-64-v3: avx avx2, here x86-64-v4"),
    ],
)
def test_what_differs_is_refused_by_name(changed: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(CheckpointRefused, match=f"the checkpoint of update 3 .*{words}") as caught:
        resume_from(checkpoint_of(), wanted(**changed))
    assert caught.value.details["field"] == field
    assert caught.value.exit_code == 2


def test_another_numeric_class_goes_on_within_a_tolerance_where_that_may_be() -> None:
    found = resume_from(checkpoint_of(), wanted(origin=OTHER_CPU))
    assert found.level == "tolerance"
    assert "another numeric class (features: x86-64-v3: avx avx2, here x86-64-v4: avx512f)" in found.notes[-1]


def test_what_was_computed_within_a_tolerance_stays_so() -> None:
    rough = checkpoint_of(level="tolerance")
    assert resume_from(rough, wanted()).level == "tolerance"
    with pytest.raises(CheckpointRefused, match="within a tolerance, and bitwise was asked for"):
        resume_from(rough, wanted(reproducible="bitwise"))


def test_exact_integers_are_the_same_on_every_processor() -> None:
    counted = checkpoint_of(kind="simulation", dtype=None)
    found = resume_from(counted, wanted(kind="simulation", dtype=None, origin=OTHER_CPU))
    assert found.level == "bitwise" and len(found.notes) == 1
