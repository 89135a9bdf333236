"""Which rows an update takes: a pure function of the experiment, laid out for the engines.

An epoch's rows come as one int32 array [updates, capacity x block]: the rows of an update in order, then zeros that stand
for padding. ``capacity`` is the number of blocks of a full batch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import blocks, order


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The plan of a whole fit: ``epochs`` passes over ``rows`` rows in batches of ``batch`` rows."""

    rows: int
    batch: int
    block: int
    epochs: int
    seed: int
    shuffle: bool = True

    @property
    def capacity(self) -> int:
        """Blocks of a full batch."""
        return blocks.block_count(min(self.batch, self.rows), self.block)

    @property
    def updates_per_epoch(self) -> int:
        """Updates of one epoch; the partial last batch counts."""
        return -(-self.rows // self.batch)

    @property
    def updates(self) -> int:
        """Updates of the whole fit."""
        return self.epochs * self.updates_per_epoch

    def epoch_of(self, update: int) -> tuple[int, int]:
        """(epoch, index of the update in its epoch)."""
        return divmod(update, self.updates_per_epoch)

    def rows_of(self, update: int) -> int:
        """Real rows of the update."""
        index = update % self.updates_per_epoch
        return min(self.batch, self.rows - index * self.batch)

    def rows_before(self, update: int) -> int:
        """Real rows of all updates before this one."""
        epochs, index = divmod(update, self.updates_per_epoch)
        return epochs * self.rows + index * self.batch

    def blocks_of(self, update: int) -> int:
        """Blocks of the update; the last may be padded."""
        return blocks.block_count(self.rows_of(update), self.block)

    def order_of(self, epoch: int) -> NDArray[np.int32]:
        """Int32 [rows]: the order of the rows in this epoch."""
        if not self.shuffle:
            return np.arange(self.rows, dtype=np.int32)
        return order.row_order(self.seed, epoch, self.rows)

    def fill_epoch(self, out: NDArray[np.int32], epoch: int) -> None:
        """Write the epoch's rows into ``out`` [updates, capacity x block]."""
        wanted = self.order_of(epoch)
        full = self.rows // self.batch
        if full:  # with a batch larger than the data, a row of ``out`` may be shorter than the batch
            out[:full, : self.batch] = wanted[: full * self.batch].reshape(full, self.batch)
            out[:full, self.batch :] = 0
        if full < self.updates_per_epoch:
            rest = wanted[full * self.batch :]
            out[full, : len(rest)] = rest
            out[full, len(rest) :] = 0
