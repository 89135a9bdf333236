import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx_proto import blocks
from phalanx_proto.errors import InvalidRequest, LedgerMismatch
from phalanx_proto.ledger import Accepted, Dropped, Ledger, Plan, Share, shares_of


def a_plan(*ends: int, rows: int = 30, block: int = 4) -> Plan:
    """Update 7 of 30 rows in 8 blocks, the last one of 2 rows; members a, b, ... up to the given ends."""
    ranges = list(zip((0, *ends), ends, strict=False))
    members = [(name, 3) for name in "abcdef"[: len(ranges)]]
    return Plan(run="r", update=7, rows=rows, block=block, shares=shares_of(ranges, members))


def test_every_block_is_accepted_once() -> None:
    ledger = Ledger(a_plan(3, 8))
    assert ledger.missing() == ((0, 8),)
    assert ledger.accept("b", 3, 7, 4, 8, 14, 14.0) == Accepted(member="b", lo=4, hi=8, rows=14)
    assert ledger.missing() == ((0, 4),)
    ledger.accept("b", 3, 7, 3, 4, 4, 4.0)
    assert not ledger.complete
    ledger.accept("a", 3, 7, 0, 3, 12, 12.0)
    assert ledger.complete and ledger.missing() == ()
    assert ledger.rows == {"a": 12, "b": 18}
    assert not ledger.dropped


@pytest.mark.parametrize(
    ("member", "incarnation", "update", "reason"),
    [
        ("a", 3, 6, "late"),
        ("a", 3, 8, "other update"),
        ("a", 2, 7, "other incarnation"),
        ("a", 4, 7, "other incarnation"),
        ("z", 3, 7, "unknown member"),
        ("a", 3, 7, "duplicate"),
    ],
)
def test_what_does_not_count_is_dropped_and_counted(member: str, incarnation: int, update: int, reason: str) -> None:
    ledger = Ledger(a_plan(3, 8))
    ledger.accept("a", 3, 7, 0, 3, 12, 12.0)
    for _ in range(2):
        found = ledger.accept(member, incarnation, update, 0, 3, 99, float("nan"))
        assert isinstance(found, Dropped) and found.reason == reason
    assert dict(ledger.dropped) == {reason: 2}
    assert ledger.rows == {"a": 12} and ledger.missing() == ((3, 8),)


@pytest.mark.parametrize(
    ("lo", "hi", "rows", "weight"),
    [
        (0, 3, 11, 12.0),
        (0, 3, 12, 11.5),
        (0, 3, 12, float("nan")),
        (0, 4, 16, 16.0),
        (3, 8, 18, 18.0),
        (2, 2, 0, 0.0),
        (-1, 2, 8, 8.0),
    ],
)
def test_what_contradicts_the_plan_raises(lo: int, hi: int, rows: int, weight: float) -> None:
    ledger = Ledger(a_plan(3, 8))
    with pytest.raises(LedgerMismatch, match=rf"a: update 7: blocks \[{lo}, {hi}\)") as caught:
        ledger.accept("a", 3, 7, lo, hi, rows, weight)
    assert caught.value.details == {"run": "r", "member": "a", "update": 7, "blocks": [lo, hi]}
    assert ledger.missing() == ((0, 8),)


@pytest.mark.parametrize(("lo", "hi"), [(0, 3), (2, 3), (3, 4), (3, 5), (2, 4), (4, 6), (1, 6), (0, 8)])
def test_blocks_that_are_accepted_in_part_raise(lo: int, hi: int) -> None:
    ledger = Ledger(a_plan(8))
    ledger.accept("a", 3, 7, 0, 1, 4, 4.0)
    ledger.accept("a", 3, 7, 2, 5, 12, 12.0)
    rows = blocks.rows_in(lo, hi, 4, 30)
    with pytest.raises(LedgerMismatch):
        ledger.accept("a", 3, 7, lo, hi, rows, float(rows))
    assert ledger.missing() == ((1, 2), (5, 8))


def test_a_member_without_blocks_is_legal() -> None:
    ledger = Ledger(a_plan(0, 8, 8))
    ledger.accept("b", 3, 7, 0, 8, 30, 30.0)
    assert ledger.complete


@pytest.mark.parametrize("ends", [(), (7,), (3, 9), (3, 2, 8)])
def test_a_plan_covers_each_block_once(ends: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="update 7"):
        a_plan(*ends)


def test_lost_blocks_of_the_same_update_are_done_by_others() -> None:
    ledger = Ledger(a_plan(3, 8))
    ledger.accept("b", 3, 7, 4, 5, 4, 4.0)
    assert ledger.lose("b") == ((3, 4), (5, 8))
    assert ledger.lose("b") == ()
    ledger.assign(Share(member="a", incarnation=3, lo=5, hi=8))
    ledger.assign(Share(member="c", incarnation=1, lo=3, hi=4))
    assert ledger.accept("b", 3, 7, 5, 8, 10, 10.0) == Dropped(reason="lost member")
    for member, incarnation, lo, hi, rows in (("a", 3, 0, 3, 12), ("a", 3, 5, 8, 10), ("c", 1, 3, 4, 4)):
        ledger.accept(member, incarnation, 7, lo, hi, rows, float(rows))
    assert ledger.complete
    assert ledger.rows == {"a": 22, "b": 4, "c": 4}


@pytest.mark.parametrize(
    ("member", "incarnation", "lo", "hi"),
    [("c", 1, 2, 4), ("c", 1, 4, 5), ("a", 4, 5, 8), ("c", 1, 5, 9), ("c", 1, 5, 5)],
)
def test_only_free_blocks_are_assigned(member: str, incarnation: int, lo: int, hi: int) -> None:
    ledger = Ledger(a_plan(3, 8))
    ledger.accept("b", 3, 7, 4, 5, 4, 4.0)
    ledger.lose("b")
    with pytest.raises(InvalidRequest):
        ledger.assign(Share(member=member, incarnation=incarnation, lo=lo, hi=hi))


@given(st.integers(1, 60), st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 9))
def test_any_plan_of_shared_blocks_adds_up(rows: int, block: int, weights: list[int], turn: int) -> None:
    ranges = blocks.share_blocks(blocks.block_count(rows, block), weights, turn)
    members = [(f"m{index}", 1) for index in range(len(weights))]
    ledger = Ledger(Plan(run="r", update=turn, rows=rows, block=block, shares=shares_of(ranges, members)))
    for (name, _), (lo, hi) in reversed(list(zip(members, ranges, strict=True))):
        real = blocks.rows_in(lo, hi, block, rows)
        if lo < hi:
            ledger.accept(name, 1, turn, lo, hi, real, float(real))
    assert ledger.complete and sum(ledger.rows.values()) == rows


def test_an_empty_share_is_in_nobodys_way() -> None:
    shares = [Share(member="a", incarnation=1, lo=0, hi=2), Share(member="b", incarnation=1, lo=2, hi=2)]
    shares.append(Share(member="c", incarnation=1, lo=2, hi=4))
    ledger = Ledger(Plan(run="run", update=0, rows=4, block=1, shares=tuple(shares)))
    assert ledger.lose("a") == ((0, 2),)
    ledger.assign(Share(member="c", incarnation=1, lo=0, hi=2))
    assert ledger.lose("c") == ((0, 4),)
    ledger.assign(Share(member="b", incarnation=1, lo=0, hi=4))
    assert ledger.owing() == ("b",)
