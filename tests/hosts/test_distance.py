"""Far members and thin lines: a run is slower there, and nothing else."""

import time
from pathlib import Path

import pytest

import phalanx
from phalanx.results import Fitted
from phalanx_proto.execution import Execution
from tests.hosts.lab import Lab
from tests.hosts.workers import write_group
from tests.system.groups import classifier

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh")]
ROWS = phalanx.datasets.synthetic(600, 8, 3, seed=1).rows("train")


def fit(hidden: int, execution: Execution, batch: int = 100) -> Fitted:
    config = phalanx.training(epochs=1, batch=batch, rate=0.01, seed=3)
    return phalanx.fit(classifier(hidden=[hidden]), ROWS, config, execution=execution, reproducible="bitwise")


@pytest.mark.parametrize("milliseconds", [1.0, 10.0, 60.0])
def test_a_round_trip_of(lab: Lab, tmp_path: Path, milliseconds: float) -> None:
    far = lab.record("alpha", *lab.delayed(milliseconds))
    execution = write_group(tmp_path, [far, lab.record("beta")])
    assert fit(16, execution).digest == fit(16, phalanx.local(1)).digest
    phalanx.shutdown()


@pytest.mark.parametrize("closed", [{}, {"AllowStreamLocalForwarding": "no"}], ids=["forward", "relay"])
def test_a_thin_line(lab: Lab, tmp_path: Path, closed: dict[str, str]) -> None:
    """137,503 parameters are 0.6 MB down and 1.1 MB up a node: four seconds a node here, as long as a heartbeat."""
    with lab.server("alpha", **closed) as there:
        far = lab.record("alpha", *there, *lab.delayed(20.0, rate=275_000))
        execution = write_group(tmp_path, [far, lab.record("beta")])
        began = time.monotonic()
        found = fit(12_500, execution, batch=300)
        assert time.monotonic() - began > 8
        phalanx.shutdown()
    assert found.digest == fit(12_500, phalanx.local(1), batch=300).digest
