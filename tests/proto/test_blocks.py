import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx_proto import blocks
from phalanx_proto.errors import InvalidRequest


@pytest.mark.parametrize(
    ("batch", "block"),
    [
        (1, 1),
        (11, 1),
        (24, 2),
        (32, 2),
        (256, 16),
        (1535, 64),
        (1536, 128),
        (3072, 128),
        (8192, 128),
        (16384, 256),
        (65536, 1024),
    ],
)
def test_auto_block(batch: int, block: int) -> None:
    assert blocks.auto_block(batch) == block


@given(st.integers(1, 10**7))
def test_auto_block_is_a_power_of_two_that_leaves_enough_blocks(batch: int) -> None:
    block = blocks.auto_block(batch)
    assert block & (block - 1) == 0
    assert block == 1 or blocks.block_count(batch, block) >= 12


def test_counts() -> None:
    assert [blocks.block_count(rows, 4) for rows in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [blocks.rows_in(lo, hi, 4, 10) for lo, hi in ((0, 3), (0, 1), (1, 2), (2, 3), (2, 2), (3, 5))] == [
        10,
        4,
        4,
        2,
        0,
        0,
    ]
    for call in (
        lambda: blocks.auto_block(0),
        lambda: blocks.block_count(1, 0),
        lambda: blocks.split_even(0, 3, 0, 0),
    ):
        with pytest.raises(InvalidRequest, match="at least"):
            call()


@pytest.mark.parametrize(
    ("count", "weights", "expected"),
    [
        (12, (1, 1), (6, 6)),
        (12, (1, 7), (2, 10)),
        (4, (1, 7), (1, 3)),
        (16, (3, 1, 2), (8, 3, 5)),
        (5, (1, 1), (3, 2)),
        (7, (1, 1, 1), (3, 2, 2)),
        (10, (0.1, 0.2, 0.7), (1, 2, 7)),
        (3, (5,), (3,)),
        (3, (1, 1, 1), (1, 1, 1)),
        (0, (1, 2), (0, 0)),
    ],
)
def test_blocks_go_by_weight(count: int, weights: tuple[float, ...], expected: tuple[int, ...]) -> None:
    assert widths(blocks.share_blocks(count, weights, 0)) == expected
    assert blocks.share_blocks(count, weights, 0)[0][0] == 0


def widths(ranges: tuple[blocks.Range, ...]) -> tuple[int, ...]:
    return tuple(hi - lo for lo, hi in ranges)


@given(st.integers(0, 200), st.lists(st.one_of(st.integers(1, 99), st.floats(0.01, 99)), min_size=1), st.integers(0, 10**6))
def test_shares_are_contiguous_and_cover(count: int, weights: list[float], turn: int) -> None:
    ranges = blocks.share_blocks(count, weights, turn)
    assert [lo for lo, _ in ranges] + [count] == [0, *(hi for _, hi in ranges)]
    assert all(lo <= hi for lo, hi in ranges)
    assert ranges == blocks.share_blocks(count, weights, turn)


def test_fewer_blocks_than_members_rotate() -> None:
    assert [widths(blocks.share_blocks(2, (1, 9, 1), turn)) for turn in range(3)] == [(1, 1, 0), (0, 1, 1), (1, 0, 1)]
    assert blocks.share_blocks(1, (1, 1, 1), 1) == ((0, 0), (0, 1), (1, 1))


@given(st.lists(st.integers(1, 12), min_size=12, max_size=12), st.integers(2, 12), st.integers(0, 1000))
def test_nobody_waits_longer_than_one_round(counts: list[int], members: int, first: int) -> None:
    """Whatever the sizes of the updates, partial last batches included."""
    worked = [0] * members
    for turn, count in enumerate(counts[:members], first):
        shares = widths(blocks.share_blocks(count, (1,) * members, turn))
        worked = [a + b for a, b in zip(worked, shares, strict=True)]
    assert min(worked) >= 1


def test_a_share_that_rounds_to_none_works_now_and_then() -> None:
    taken = [widths(blocks.share_blocks(12, (1, 99), turn)) for turn in range(100)]
    assert taken[0] == (1, 11)
    assert set(taken) == {(0, 12), (1, 11)}
    assert sum(share[0] for share in taken) == 12
    assert widths(blocks.share_blocks(3, (1, 1, 1000), 0)) == (1, 1, 1)


@pytest.mark.parametrize("weights", [(), (1, 0), (1, -1), (float("nan"),), (float("inf"), 1)])
def test_weights_that_cannot_be(weights: tuple[float, ...]) -> None:
    with pytest.raises(InvalidRequest):
        blocks.share_blocks(4, weights, 0)


def test_split_even() -> None:
    assert blocks.split_even(3, 10, 3, 0) == ((3, 6), (6, 8), (8, 10))
    assert blocks.split_even(3, 5, 3, 1) == ((3, 3), (3, 4), (4, 5))
    assert blocks.split_even(4, 4, 2, 0) == ((4, 4), (4, 4))


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=12), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 9)
)
def test_ranges_that_lie_apart_are_cut_like_one(gaps: list[int], weights: list[int], turn: int) -> None:
    ends = [sum(gaps[: n + 1]) + n for n in range(len(gaps))]
    ranges = [(lo, hi) for lo, hi in zip(ends[::2], ends[1::2], strict=False)]
    pieces = blocks.share_ranges(ranges, weights, turn)
    assert [k for _, (lo, hi) in pieces for k in range(lo, hi)] == [k for lo, hi in ranges for k in range(lo, hi)]
    shares = blocks.share_blocks(sum(hi - lo for lo, hi in ranges), weights, turn)
    for member, (lo, hi) in enumerate(shares):
        assert sum(b - a for owner, (a, b) in pieces if owner == member) == hi - lo
    assert len(pieces) <= len(ranges) + len(weights) - 1


def test_ranges_that_touch_become_one() -> None:
    assert blocks.merge_ranges([(0, 2), (2, 3), (5, 6), (6, 9)]) == ((0, 3), (5, 9))
    assert blocks.merge_ranges([]) == ()
