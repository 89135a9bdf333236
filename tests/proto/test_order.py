import hashlib

import numpy as np
import pytest

from phalanx_proto import order
from phalanx_proto.errors import InvalidRequest
from phalanx_proto.philox import STREAM_ORDER, words


def test_the_order_is_frozen() -> None:
    """A change of this digest changes every result that was ever recorded."""
    state = hashlib.sha256()
    for seed, epoch, rows in ((42, 0, 1000), (42, 1, 1000), ((1 << 64) - 1, (1 << 32) - 1, 7), (0, 0, 1)):
        state.update(order.row_order(seed, epoch, rows).astype("<i4").tobytes())
    assert state.hexdigest() == "fd36fa3ba8c3d8bf1737200b79898fb5c23fe2f05399d0309fc71135798c321b"


def test_the_order_sorts_64_bit_keys_low_word_first() -> None:
    low, high = words(3, STREAM_ORDER, 200, lane=5).reshape(-1, 2).T.tolist()
    keys = [a | b << 32 for a, b in zip(low, high, strict=True)]
    found = order.row_order(3, 5, 100)
    assert found.dtype == np.int32
    assert found.tolist() == sorted(range(100), key=keys.__getitem__)


def test_equal_keys_keep_their_row_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(_seed: int, _stream: int, count: int, lane: int) -> np.typing.NDArray[np.uint32]:
        return np.repeat(np.arange(count // 2, dtype=np.uint32) % 3, 2)

    monkeypatch.setattr(order, "words", few)
    found = order.row_order(0, 0, 3000)
    assert found.tolist() == sorted(range(3000), key=lambda row: row % 3)


def test_epochs_and_seeds_have_their_own_permutations() -> None:
    found = {order.row_order(seed, epoch, 50).tobytes() for seed in range(3) for epoch in range(3)}
    assert len(found) == 9
    assert sorted(order.row_order(1, 2, 50).tolist()) == list(range(50))
    assert order.row_order(1, 2, 0).shape == (0,)


@pytest.mark.parametrize(("seed", "epoch", "rows"), [(0, 0, -1), (0, 0, 1 << 31), (0, -1, 2), (0, 1 << 32, 2), (-1, 0, 2)])
def test_what_cannot_be_ordered_is_refused(seed: int, epoch: int, rows: int) -> None:
    with pytest.raises(InvalidRequest):
        order.row_order(seed, epoch, rows)
