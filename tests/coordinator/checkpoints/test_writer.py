"""The writer: beside the run, one at a time, and its failure ends the run."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from phalanx_coordinator.checkpoints.checkpoint import Checkpoint
from phalanx_coordinator.checkpoints.policy import CheckpointPolicy
from phalanx_coordinator.checkpoints.store import CheckpointStore
from phalanx_coordinator.checkpoints.writer import CheckpointWriter
from phalanx_proto.errors import Unavailable
from tests.coordinator.checkpoint_builders import checkpoint_of


class SlowStore(CheckpointStore):
    """Writes when it is let, and fails when it is told."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.let, self.fail = threading.Event(), False

    def save(self, checkpoint: Checkpoint) -> None:
        assert self.let.wait(20)
        if self.fail:
            raise Unavailable("the disk is full")
        super().save(checkpoint)


Story = Callable[[SlowStore, CheckpointWriter, list[int]], Awaitable[None]]


def tell(tmp_path: Path, every: int | None, story: Story) -> None:
    async def told() -> None:
        store, said = SlowStore(tmp_path / "checkpoints"), list[int]()
        writer = CheckpointWriter(store, CheckpointPolicy(period=1, total=100, every=every), said.append)
        writer.begin(0)
        try:
            await story(store, writer, said)
        finally:
            store.let.set()
            await writer.close()

    asyncio.run(asyncio.wait_for(told(), 20))


def test_while_one_is_being_written_no_other_is_due(tmp_path: Path) -> None:
    async def story(store: SlowStore, writer: CheckpointWriter, said: list[int]) -> None:
        assert writer.stop(0) == 1 and await writer.wanted(1)
        writer.write(checkpoint_of(1), 0.0)
        assert not await writer.wanted(2) and writer.stop(2) == 100
        store.let.set()
        assert await writer.close() is None
        assert said == [1] and writer.policy.cost > 0
        found = store.newest()
        assert found is not None and found.update == 1

    tell(tmp_path, None, story)


def test_a_number_of_updates_waits_for_the_disk(tmp_path: Path) -> None:
    async def story(store: SlowStore, writer: CheckpointWriter, said: list[int]) -> None:
        assert await writer.wanted(1)
        writer.write(checkpoint_of(1), 0.0)
        second = asyncio.ensure_future(writer.wanted(2))
        await asyncio.sleep(0)
        assert not second.done() and writer.stop(2) == 3
        store.let.set()
        assert await second and said == [1]
        writer.write(checkpoint_of(2), 0.0)

    tell(tmp_path, 1, story)


def test_a_write_that_failed_ends_the_run_at_its_next_update(tmp_path: Path) -> None:
    async def story(store: SlowStore, writer: CheckpointWriter, said: list[int]) -> None:
        store.fail = True
        writer.write(checkpoint_of(1), 0.0)
        store.let.set()
        with pytest.raises(Unavailable, match="the disk is full"):
            while True:
                await writer.wanted(2)
                await asyncio.sleep(0)
        assert said == [] and await writer.close() is None

    tell(tmp_path, None, story)


def test_a_write_that_fails_when_the_run_is_over_is_told(tmp_path: Path) -> None:
    async def story(store: SlowStore, writer: CheckpointWriter, said: list[int]) -> None:
        store.fail = True
        writer.write(checkpoint_of(1), 0.0)
        store.let.set()
        error = await writer.close()
        assert error is not None and error.message == "the disk is full"

    tell(tmp_path, None, story)
