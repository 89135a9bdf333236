"""A job that is taken over is the one that was submitted, or it is refused and left alone."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from phalanx_coordinator.job_directory.directory import JobDirectory
from phalanx_coordinator.jobs.resuming import take_over
from phalanx_coordinator.session import Coordinator
from phalanx_proto import job_files, requests
from phalanx_proto.errors import InvalidJob
from phalanx_proto.execution import Local
from phalanx_proto.jobs import SimulationRequest

REQUEST = SimulationRequest(samples=1000, seed=1, execution=Local(workers=1))


class Describing:
    """Tells of a simulation what its manifest says of the experiment."""

    async def described(self, request: Any, output: Any = None) -> dict[str, Any]:
        return {"experiment": {"samples": request.samples, "seed": request.seed}}


def take(job: Path) -> JobDirectory:
    return asyncio.run(take_over(cast(Coordinator, Describing()), job, Local(workers=2)))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    manifest = {"format": 1, "kind": "simulation", "experiment": {"samples": 1000, "seed": 1}}
    JobDirectory.create(tmp_path / "job", REQUEST, manifest).close()
    return tmp_path / "job"


def test_another_place_is_the_same_request(job: Path) -> None:
    take(job).close()
    assert cast(SimulationRequest, job_files.read_request(job)).execution == Local(workers=2)


@pytest.mark.parametrize("digest_too", [False, True])
def test_another_experiment_is_refused_and_nothing_is_overwritten(job: Path, digest_too: bool) -> None:
    document = json.loads((job / "request.json").read_text())
    document["values"]["seed"] = 2
    if digest_too:
        document["digest"] = requests.digest(document)
    (job / "request.json").write_text(json.dumps(document))
    before = {path.name: path.read_bytes() for path in job.iterdir() if path.name != "lock"}
    with pytest.raises(InvalidJob, match=r"request.json of .* (is not the one|asks for another experiment)"):
        take(job)
    assert {path.name: path.read_bytes() for path in job.iterdir() if path.name != "lock"} == before
