"""The edge of the checkpoints: asks the policy, hands a copy to a thread, one at a time, while the run goes on."""

import asyncio
import time
from collections.abc import Callable

from phalanx_coordinator.checkpoints.checkpoint import Checkpoint
from phalanx_coordinator.checkpoints.policy import CheckpointPolicy
from phalanx_coordinator.checkpoints.store import CheckpointStore
from phalanx_proto.errors import PhalanxError

CLOSING = 600.0
"""Seconds for the last write to end when its run has."""


class CheckpointWriter:
    """The checkpoints of one run. A write that fails ends the run, at its next update."""

    def __init__(self, store: CheckpointStore, policy: CheckpointPolicy, tell: Callable[[int], None]) -> None:
        self.policy = policy
        self._store, self._tell = store, tell
        self._writing: asyncio.Task[None] | None = None

    def begin(self, update: int) -> None:
        """The run is about to make its first update, which is ``update``."""
        self.policy.take(time.monotonic(), update)

    def stop(self, update: int) -> int:
        """Where a run that is at ``update`` has to stop for its next checkpoint, at the latest."""
        busy = self._writing is not None and not self._writing.done()
        return self.policy.total if busy and self.policy.every is None else self.policy.stop(time.monotonic(), update)

    async def wanted(self, update: int) -> bool:
        """Whether to take one after ``update`` updates; raises what the last write raised.

        While one is being written no other is due, but where the number of updates is prescribed: that waits.
        """
        while True:
            self._raise()
            if not self.policy.due(time.monotonic(), update):
                return False
            if self._writing is None:
                return True
            if self.policy.every is None:
                return False
            await asyncio.wait({self._writing})

    def _raise(self) -> None:
        if self._writing is not None and self._writing.done():
            task, self._writing = self._writing, None
            task.result()

    def write(self, checkpoint: Checkpoint, began: float) -> None:
        """Begin to write what was taken at ``began`` on the monotonic clock; its arrays must stay until it is written."""
        assert self._writing is None
        self.policy.take(began, checkpoint.update)
        self._writing = asyncio.create_task(self._write(checkpoint, began))

    async def _write(self, checkpoint: Checkpoint, began: float) -> None:
        await asyncio.to_thread(self._store.save, checkpoint)
        self._tell(checkpoint.update)
        self.policy.cost = time.monotonic() - began

    async def close(self) -> PhalanxError | None:
        """Wait until nothing is being written; returns what the last write raised."""
        task, self._writing = self._writing, None
        if task is None:
            return None
        await asyncio.wait({task}, timeout=CLOSING)
        if not task.done():
            return PhalanxError(f"the last checkpoint was not written within {CLOSING:.0f} s; is its disk stuck?")
        error = task.exception()
        if error is None or isinstance(error, PhalanxError):
            return error
        raise error
