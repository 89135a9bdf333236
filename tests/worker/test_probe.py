"""What one measurement may take and give; over a real daemon in ``test_service.py``."""

import pytest

from phalanx_proto.errors import InvalidRequest
from phalanx_worker import probe
from phalanx_worker.probe import Probe


@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (0, [0]),
        (1, [1]),
        (probe.PIECE, [probe.PIECE]),
        (probe.PIECE + 1, [probe.PIECE, 1]),
        (2 * probe.PIECE, [probe.PIECE] * 2),
    ],
)
def test_an_answer_has_its_size_and_one_end(size: int, pieces: list[int]) -> None:
    found = list(Probe().answer(size))
    assert [len(data) for data, _ in found] == pieces
    assert [last for _, last in found] == [False] * (len(pieces) - 1) + [True]


def test_what_comes_is_counted() -> None:
    taken = Probe()
    taken.take(3)
    taken.take(0)
    taken.take(4)
    assert taken.received == 7


def test_limits() -> None:
    with pytest.raises(InvalidRequest, match="in one request"):
        Probe().take(probe.MAX_REQUEST + 1)
    with pytest.raises(InvalidRequest, match="an answer of"):
        next(Probe().answer(probe.MAX_ANSWER + 1))
    busy = Probe()
    for _ in range(probe.MAX_STREAM // probe.MAX_REQUEST):
        busy.take(probe.MAX_REQUEST)
    with pytest.raises(InvalidRequest, match="came in one measurement"):
        busy.take(1)
    for _ in range(probe.MAX_STREAM // probe.MAX_ANSWER):
        next(busy.answer(probe.MAX_ANSWER))
    with pytest.raises(InvalidRequest, match="are asked for in one measurement"):
        next(busy.answer(1))
