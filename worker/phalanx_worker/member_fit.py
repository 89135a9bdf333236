"""The member side of a fit: rows and parameters arrive with each update, nodes go back. It commits nothing."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import blocks, reduction
from phalanx_proto.errors import EngineFailed, InvalidRequest
from phalanx_proto.receipt import Receipt
from phalanx_worker import mailbox
from phalanx_worker.fit import canaries
from phalanx_worker.gang import Leader, Nodes


@dataclass(kw_only=True)
class MemberFit:
    """A fit on a worker: rows and parameters arrive with each update, nodes go back."""

    leader: Leader

    def canary(self, rows: NDArray[np.int32], parameters: NDArray[Any]) -> str:
        """Digest of the node of block 0 of update 0 at ``parameters``."""
        self.leader.publish(parameters, 0)
        self._place(0, 0, 1, rows)
        found = canaries(self.leader, self._parameters(0), 0, 0)
        different = [slot for slot, canary in enumerate(found) if canary.digest != found[0].digest]
        if different:
            raise EngineFailed(f"slots {different} of one worker compute other bits than its slot 0")
        return found[0].digest

    def nodes(self, update: int, lo: int, hi: int, rows: NDArray[np.int32]) -> tuple[Nodes, Receipt]:
        """The maximal nodes of [lo, hi) of the update; ``rows`` are the row ids of that range.

        The parameters of the update lie in the work arena already.
        """
        started = time.perf_counter_ns()
        shape = self.leader.shape
        n = shape.schedule.blocks_of(update)
        self._place(update, lo, hi, rows)
        before = time.perf_counter_ns()
        ranges = blocks.split_even(lo, hi, shape.slots, update)
        found = self.leader.nodes(self._parameters(update), update, ranges, 0, update & 1)
        merged = merge(found, lo, hi, n)
        ended = time.perf_counter_ns()
        receipt = Receipt(rows=len(rows), prepare_ns=before - started, compute_ns=ended - before, total_ns=ended - started)
        return merged, receipt

    def _parameters(self, update: int) -> NDArray[Any]:
        found: NDArray[Any] = self.leader.arena["parameters"][update & 1][: self.leader.shape.sizes.parameters]
        return found

    def _place(self, update: int, lo: int, hi: int, rows: NDArray[np.int32]) -> None:
        """Write the row ids of [lo, hi) to where the slots read them, after checking them."""
        schedule, block = self.leader.shape.schedule, self.leader.shape.sizes.block
        n = schedule.blocks_of(update)
        if not 0 <= update < 1 << 31:
            raise InvalidRequest(f"update {update} is not a number from 0 to 2**31 - 1")
        if not 0 <= lo < hi <= n:
            raise InvalidRequest(f"blocks [{lo}, {hi}) of update {update} are not a range of its {n} blocks")
        expected = blocks.rows_in(lo, hi, block, schedule.rows_of(update))
        if len(rows) != expected:
            raise InvalidRequest(f"update {update}: {len(rows)} row ids came for {expected} rows")
        if rows.min() < 0 or rows.max() >= schedule.rows:
            raise InvalidRequest(f"update {update}: a row id lies outside the {schedule.rows} rows of the data")
        ids = mailbox.row_buffers(self.leader.arena)[update & 1]
        ids[lo * block : lo * block + len(rows)] = rows
        ids[lo * block + len(rows) : hi * block] = 0


def merge(found: Nodes, lo: int, hi: int, n: int) -> Nodes:
    """The maximal nodes of [lo, hi) from finer nodes that cover it."""
    return {span: reduction.combine(found, *span) for span in reduction.maximal_nodes(lo, hi, n)}
