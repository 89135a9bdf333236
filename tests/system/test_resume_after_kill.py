"""A coordinator that is killed, at whatever moment, has lost nothing but the updates since its last checkpoint."""

import dataclasses
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx
from phalanx_coordinator.checkpoints.checkpoint import Checkpoint
from phalanx_coordinator.checkpoints.store import CheckpointStore
from phalanx_proto.errors import CheckpointRefused, CorruptData, Unavailable
from phalanx_proto.jobs import FitOutcome
from tests import disks
from tests.system.durable import LONG, fit, fit_request, newest
from tests.system.groups import write_group

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0

pytestmark = pytest.mark.usefixtures("fresh")


def start(job: Path, *group: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.system.durable", str(job), *group], cwd=ROOT)


def reached(process: subprocess.Popen[bytes], job: Path, update: int) -> None:
    """Wait until a checkpoint of ``update`` or later is there."""
    store, deadline = CheckpointStore(job / "checkpoints"), time.monotonic() + PATIENCE
    while not any(int(name.partition("-")[2]) >= update for name in store._names()):
        assert process.poll() is None, "it has to be killed before it ends"
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.005)


def killed(job: Path, update: int, *group: str) -> int:
    """Begin or go on, and kill the coordinator once it has got so far; the update that the next part begins with."""
    process = start(job, *group)
    try:
        reached(process, job, update)
    finally:
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
    found = newest(job)
    assert found is not None and found.notes == () and update <= found.update < 3 * LONG - 1
    return found.update


def whole() -> FitOutcome:
    return fit(fit_request(epochs=LONG))


def test_killed_and_resumed_it_ends_in_the_same_bits(tmp_path: Path) -> None:
    update = killed(tmp_path / "job", 500)
    resumed, unbroken = phalanx.resume(tmp_path / "job"), whole()
    assert isinstance(resumed, phalanx.Fitted)
    outcome = resumed.outcome
    assert (outcome.digest, outcome.history, outcome.best_epoch) == (unbroken.digest, unbroken.history, unbroken.best_epoch)
    events = phalanx.job(tmp_path / "job").events()
    assert [event.update for event in events if event.kind == "resumed"] == [update]
    assert {event.update for event in events if event.kind == "checkpoint"} >= set(range(update + 100, 3 * LONG, 100))


@pytest.mark.slow
def test_killed_again_and_again_on_one_place_and_another(tmp_path: Path) -> None:
    group = str(write_group(tmp_path, [("local", 1.0), ("socket", 1.0)]).file)
    update = 0
    for place in [(), (group,), (), (group,)]:
        update = killed(tmp_path / "job", update + 400, *place)
    assert start(tmp_path / "job").wait(PATIENCE) == 0
    assert phalanx.load(tmp_path / "job").digest == whole().digest


def test_what_does_not_fit_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    with pytest.raises(Unavailable), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "_prune", refuse)
        fit(fit_request(checkpoint_every=3), tmp_path / "job")
    request = (tmp_path / "job" / "request.json").read_bytes()
    with pytest.raises(CheckpointRefused, match="is in float64, and this execution computes in float32"):
        phalanx.resume(tmp_path / "job", phalanx.local(1, dtype="float32"))
    assert (tmp_path / "job" / "request.json").read_bytes() == request
    found = newest(tmp_path / "job")
    assert found is not None and found.update == 3
    short = {**found.arrays, "parameters": found.arrays["parameters"][:-1]}
    with pytest.raises(CorruptData, match="the checkpoint of update 3 has"):
        fit(fit_request(), resume=dataclasses.replace(found, arrays=short))
    resumed = phalanx.resume(tmp_path / "job")
    assert isinstance(resumed, phalanx.Fitted) and resumed.digest == fit(fit_request()).digest


def test_a_full_disk_stops_the_fit_and_the_last_checkpoint_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, original = fit_request(epochs=60, checkpoint_every=1), CheckpointStore.save
    with disks.small_disk(tmp_path) as disk:
        output = disk.folder / "output"

        def save(self: CheckpointStore, checkpoint: Checkpoint) -> None:
            if checkpoint.update == 5:
                disk.fill()
            original(self, checkpoint)

        with monkeypatch.context() as patch:
            patch.setattr(CheckpointStore, "save", save)
            with pytest.raises(
                Unavailable, match=r"the checkpoint of update 5 cannot be written: .*checkpoint-4, is as it was"
            ):
                fit(request, output)
        disk.free()
        assert sorted(path.name for path in (output / "checkpoints").iterdir()) == ["checkpoint-3", "checkpoint-4"]
        found = newest(output)
        assert found is not None and found.update == 4
        assert fit(request, resume=found).digest == fit(fit_request(epochs=60)).digest


def refuse(store: CheckpointStore) -> None:
    raise Unavailable("the disk was pulled out")
