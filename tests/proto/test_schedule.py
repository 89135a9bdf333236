"""The rows of an epoch as the engines find them."""

import numpy as np
import pytest

from phalanx_proto.schedule import Schedule


@pytest.mark.parametrize("batch", [3, 4, 10, 11, 100, 1000])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_an_epoch_holds_every_row_once_in_order(batch: int, block: int) -> None:
    """Also where the batch is larger than the data, and than the padded row of the buffer, which starts as zeros."""
    schedule = Schedule(rows=10, batch=batch, block=block, epochs=1, seed=7)
    out = np.zeros((schedule.updates_per_epoch, schedule.capacity * block), np.int32)
    schedule.fill_epoch(out, 0)
    taken = [out[update, : schedule.rows_of(update)] for update in range(schedule.updates_per_epoch)]
    assert np.concatenate(taken).tolist() == schedule.order_of(0).tolist()
    assert not out[-1, schedule.rows_of(schedule.updates_per_epoch - 1) :].any()


@pytest.mark.parametrize("batch", [3, 5, 10, 11])
def test_rows_before_an_update_are_those_of_the_updates_before_it(batch: int) -> None:
    schedule = Schedule(rows=10, batch=batch, block=1, epochs=3, seed=7)
    sums = np.cumsum([0, *(schedule.rows_of(update) for update in range(schedule.updates))])
    assert [schedule.rows_before(update) for update in range(schedule.updates + 1)] == sums.tolist()
