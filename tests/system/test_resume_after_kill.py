"""A coordinator that is killed, at whatever moment, has lost nothing but the updates since its last checkpoint."""

import dataclasses
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx_coordinator.checkpoint import Checkpoint
from phalanx_coordinator.checkpoint_store import CheckpointStore
from phalanx_proto.errors import CorruptData, Unavailable
from phalanx_proto.jobs import FitOutcome
from tests import disks
from tests.system.durable import LONG, fit, fit_request, newest
from tests.system.groups import write_group

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0

pytestmark = pytest.mark.usefixtures("fresh")


def start(folder: Path, *group: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.system.durable", str(folder), *group], cwd=ROOT)


def reached(process: subprocess.Popen[bytes], output: Path, update: int) -> None:
    """Wait until a checkpoint of ``update`` or later is there."""
    store, deadline = CheckpointStore(output / "checkpoints"), time.monotonic() + PATIENCE
    while not any(int(name.partition("-")[2]) >= update for name in store._names()):
        assert process.poll() is None, "it has to be killed before it ends"
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.005)


def killed(folder: Path, part: int, update: int, *group: str) -> int:
    """Start a part, kill it once it has got so far; the update that the next part begins with."""
    process = start(folder, *group)
    try:
        reached(process, folder / f"part-{part}", update)
    finally:
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
    found = newest(folder / f"part-{part}")
    assert found is not None and found.notes == () and found.update >= update
    return found.update


def whole() -> FitOutcome:
    return fit(fit_request(epochs=LONG))


def test_killed_and_resumed_it_ends_in_the_same_bits(tmp_path: Path) -> None:
    update = killed(tmp_path, 0, 500)
    outcome, unbroken = fit(fit_request(epochs=LONG), resume=newest(tmp_path / "part-0")), whole()
    assert update < 3 * LONG - 1
    assert (outcome.digest, outcome.history, outcome.best_epoch) == (unbroken.digest, unbroken.history, unbroken.best_epoch)


@pytest.mark.slow
def test_killed_again_and_again_on_one_place_and_another(tmp_path: Path) -> None:
    group = str(write_group(tmp_path, [("local", 1.0), ("socket", 1.0)]).file)
    update = 0
    for part, place in enumerate([(), (group,), (), (group,)]):
        update = killed(tmp_path, part, update + 400, *place)
    assert start(tmp_path).wait(PATIENCE) == 0
    assert (tmp_path / "digest").read_text() == whole().digest


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


def test_arrays_of_another_fit_end_the_run_by_name(tmp_path: Path) -> None:
    with pytest.raises(Unavailable), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "_prune", refuse)
        fit(fit_request(checkpoint_every=3), tmp_path / "output")
    found = newest(tmp_path / "output")
    assert found is not None and found.update == 3
    short = {**found.arrays, "parameters": found.arrays["parameters"][:-1]}
    with pytest.raises(CorruptData, match="the checkpoint of update 3 has"):
        fit(fit_request(), resume=dataclasses.replace(found, arrays=short))


def refuse(store: CheckpointStore) -> None:
    raise Unavailable("the disk was pulled out")
