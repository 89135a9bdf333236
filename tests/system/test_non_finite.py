"""A sum that is not finite stops a fit before the update that it would spoil, and is traced to its rows."""

import json
from pathlib import Path

import numpy as np
import pytest

import phalanx
from phalanx.models import Model
from phalanx_proto.errors import NonFinite
from phalanx_proto.execution import Execution
from phalanx_proto.experiment import Rows
from phalanx_proto.jobs import Progress
from tests.system.conftest import MakeGroup

pytestmark = pytest.mark.usefixtures("fresh", "every_update_is_told")

BAD = 37


def model() -> Model:
    return phalanx.regressor(phalanx.mlp(2, [], 1, seed=1), optimizer="sgd")


def rows(value: float) -> Rows:
    """64 rows, one of which is far off: its squared error overflows where ``value`` is 1e200."""
    x = np.random.default_rng(1).normal(size=(64, 2))
    x[BAD] = value
    return phalanx.Dataset.from_arrays(x, x.sum(axis=1)).rows("train")


def refused(execution: Execution, data: Rows, rate: float = 1e-3, output: Path | None = None) -> tuple[NonFinite, int]:
    committed = [0]

    def listen(progress: Progress) -> None:
        committed.append(progress.done)

    config = phalanx.training(epochs=3, batch=32, block=2, rate=rate, shuffle=False)
    with pytest.raises(NonFinite) as caught:
        phalanx.fit(model(), data, config, execution=execution, progress=listen, output=output, checkpoint_every=1)
    return caught.value, committed[-1]


@pytest.mark.parametrize(
    ("places", "member"),
    [
        ((("local", 1.0),), "a"),
        ((("local", 1.0), ("socket", 1.0)), "a"),
        ((("local", 1.0), ("socket", 15.0)), "b"),
    ],
    ids=["alone", "local", "socket"],
)
def test_update_block_rows_and_member_are_named(
    make_group: MakeGroup, places: tuple[tuple[str, float], ...], member: str, tmp_path: Path
) -> None:
    error, committed = refused(make_group(*places), rows(1e200), output=tmp_path / "job")
    assert error.details == {"update": 1, "block": 2, "rows": [36, 37], "member": member}
    assert f"update 1: the sums of block 2 (rows 36, 37; member {member}) are not finite" in error.message
    assert "nothing of this update was committed" in error.message
    assert committed == 1
    kept = [path.name for path in (tmp_path / "job" / "checkpoints").iterdir()]
    assert kept == ["checkpoint-1"], "of what was committed, and of nothing else"


def test_a_step_too_large_is_told_apart() -> None:
    error, committed = refused(phalanx.local(1), rows(0.0), rate=1e308)
    assert error.details == {"update": 0}
    assert "every sum is finite, but the updated parameters are not" in error.message
    assert committed == 0


def test_a_job_that_stopped_says_so_in_its_directory(tmp_path: Path) -> None:
    refused(phalanx.local(1, dtype="float32"), rows(1e300), output=tmp_path / "job")
    status = json.loads((tmp_path / "job" / "status.json").read_text())
    assert status["state"] == "FAILED"
    assert "block 2 (rows 36, 37; member local-1)" in status["reason"]
    assert not (tmp_path / "job" / "result.json").exists()
