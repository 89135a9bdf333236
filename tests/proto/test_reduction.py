from collections.abc import Mapping
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx_proto import reduction
from phalanx_proto.errors import InvalidRequest, LedgerMismatch
from phalanx_proto.reduction import Accumulator, Node, Vector


def leaves(n: int, size: int = 3) -> list[Vector]:
    """Values whose sums round differently in every other order."""
    rng = np.random.default_rng(n)
    scale = 10.0 ** rng.integers(-8, 8, (n, size))
    return list(rng.normal(size=(n, size)) * scale)


def plain(values: list[Vector], lo: int, hi: int) -> Vector:
    """DESIGN §3.4, word for word."""
    mid = (lo + hi) // 2
    return values[lo] if hi - lo == 1 else plain(values, lo, mid) + plain(values, mid, hi)


def member(values: list[Vector], lo: int, hi: int) -> dict[Node, Vector]:
    """What the owner of blocks [lo, hi) returns, by the merge schedule and a stack as deep as promised."""
    n, stack = len(values), np.zeros((reduction.stack_depth(len(values)), values[0].size))
    top = 0
    for leaf, merges in zip(values[lo:hi], reduction.merge_schedule(lo, hi, n), strict=True):
        node = leaf
        for place in range(merges):
            node = stack[top - 1 - place] + node
        top -= merges
        stack[top] = node
        top += 1
    nodes = reduction.maximal_nodes(lo, hi, n)
    assert top == len(nodes)
    return dict(zip(nodes, stack.copy(), strict=False))


@st.composite
def splits(draw: st.DrawFn) -> tuple[int, list[int]]:
    n = draw(st.integers(1, 70))
    cuts = draw(st.lists(st.integers(0, n), max_size=8))
    return n, [0, *sorted(cuts), n]


@given(splits(), st.randoms(use_true_random=False))
def test_any_split_gives_one_root_bit_for_bit(split: tuple[int, list[int]], random: Random) -> None:
    n, cuts = split
    values = leaves(n)
    nodes: dict[Node, Vector] = {}
    for lo, hi in pairwise(cuts):
        nodes |= member(values, lo, hi)
    root = plain(values, 0, n)
    assert reduction.fold(nodes, n).tobytes() == root.tobytes()
    assert reduction.combine(nodes, 0, n).tobytes() == root.tobytes()
    tree = Accumulator(n)
    arrival = list(nodes.items())
    random.shuffle(arrival)
    for (lo, hi), value in arrival:
        assert not tree.complete
        tree.add(lo, hi, value.copy())
    assert tree.complete and tree.live == 1 and tree.missing() == ()
    assert tree.root().tobytes() == root.tobytes()


def test_maximal_nodes_are_the_largest_of_the_tree() -> None:
    assert reduction.maximal_nodes(0, 12, 12) == ((0, 12),)
    assert reduction.maximal_nodes(1, 12, 12) == ((1, 3), (3, 6), (6, 12))
    assert reduction.maximal_nodes(2, 7, 12) == ((2, 3), (3, 6), (6, 7))
    assert reduction.maximal_nodes(5, 5, 12) == ()
    for lo, hi, n in ((-1, 2, 4), (3, 2, 4), (0, 5, 4), (0, 0, 0)):
        with pytest.raises(InvalidRequest):
            reduction.maximal_nodes(lo, hi, n)


def test_is_node() -> None:
    found = [(lo, hi) for lo in range(-1, 6) for hi in range(-1, 7) if reduction.is_node(lo, hi, 5)]
    assert found == [(0, 1), (0, 2), (0, 5), (1, 2), (2, 3), (2, 5), (3, 4), (3, 5), (4, 5)]


def test_merge_schedule_is_data_of_the_range() -> None:
    assert reduction.merge_schedule(0, 4, 4).tolist() == [0, 1, 0, 2]
    assert reduction.merge_schedule(1, 4, 4).tolist() == [0, 0, 1]
    assert reduction.merge_schedule(2, 2, 4).tolist() == []
    assert reduction.merge_schedule(0, 4, 4).dtype == np.int32
    assert int(reduction.merge_schedule(1, 10**6, 10**6).sum()) == 10**6 - 1 - len(reduction.maximal_nodes(1, 10**6, 10**6))


def test_stack_depth_is_exact() -> None:
    """By brute force: every range of small trees, and every range with the same end of larger ones."""
    deepest = 0
    for n in range(1, 101):
        ranges = [(lo, hi) for lo in range(n) for hi in range(lo + 1 if n <= 20 else n, n + 1)]
        pending = [np.cumsum(1 - reduction.merge_schedule(lo, hi, n)).max() for lo, hi in ranges]
        deepest = max(deepest, *(int(most) for most in pending))
        assert reduction.stack_depth(n) == deepest, n
    assert reduction.stack_depth(10**6) == 18 + 19
    with pytest.raises(InvalidRequest):
        reduction.stack_depth(0)


@pytest.mark.parametrize("n", [1, 2, 3, 12, 64, 65, 100])
def test_in_order_arrival_holds_few_nodes(n: int) -> None:
    tree = Accumulator(n)
    for k, leaf in enumerate(leaves(n)):
        tree.add(k, k + 1, leaf)
        assert tree.live <= max(1, (n - 1).bit_length())
    assert tree.complete


def test_means_2_and_4_over_32_and_224_rows_give_3_75() -> None:
    sums = {(0, 1): np.array([2.0 * 32, 32]), (1, 2): np.array([4.0 * 224, 224])}
    total, rows = reduction.fold(sums, 2)
    assert total / rows == 3.75


def test_fold_leaves_its_input_alone_and_returns_fresh_memory() -> None:
    values = leaves(5)
    nodes = {(k, k + 1): value.copy() for k, value in enumerate(values)}
    reduction.fold(nodes, 5)[:] = 0
    assert all(np.array_equal(nodes[k, k + 1], values[k]) for k in range(5))
    whole = {(0, 5): values[0].copy()}
    reduction.fold(whole, 5)[:] = 0
    assert np.array_equal(whole[0, 5], values[0])


def test_combine_writes_a_sum_into_out_and_returns_a_node_as_it_is() -> None:
    values = leaves(6)
    nodes: Mapping[Node, Vector] = {(k, k + 1): value for k, value in enumerate(values)}
    before = [value.copy() for value in values]
    out = np.empty(3)
    assert reduction.combine(nodes, 0, 6, out=out) is out
    assert out.tobytes() == plain(before, 0, 6).tobytes()
    assert reduction.combine(nodes, 3, 6).tobytes() == plain(before, 3, 6).tobytes()
    assert reduction.combine(nodes, 2, 3, out=out) is values[2]
    assert all(np.array_equal(a, b) for a, b in zip(before, values, strict=True))
    with pytest.raises(LedgerMismatch, match="block 6"):
        reduction.combine(nodes, 0, 12)


def test_fold_lists_what_is_missing_and_what_is_extra() -> None:
    one = np.ones(2)
    with pytest.raises(LedgerMismatch, match=r"missing \[3, 4\), \[6, 8\); extra \[1, 2\), \[4, 7\)") as caught:
        reduction.fold({(0, 2): one, (1, 2): one, (2, 3): one, (4, 6): one, (4, 7): one}, 8)
    assert caught.value.details["missing"] == ((3, 4), (6, 8))
    assert caught.value.details["extra"] == ((1, 2), (4, 7))
    with pytest.raises(LedgerMismatch, match=r"missing \[0, 1000000\); extra none"):
        reduction.fold({}, 1_000_000)


def test_fold_refuses_values_that_do_not_go_together() -> None:
    others: list[Any] = [np.ones(1), np.ones((2, 1)), np.ones(2, np.float32)]
    for other in others:
        with pytest.raises(LedgerMismatch, match="float64"):
            reduction.fold({(0, 1): np.ones(2), (1, 2): other}, 2)


@pytest.mark.parametrize("node", [(0, 2), (0, 1), (1, 2), (0, 4), (0, 8)])
def test_the_accumulator_refuses_what_overlaps(node: Node) -> None:
    tree = Accumulator(8)
    tree.add(0, 2, np.ones(2))
    tree.add(2, 3, np.ones(2))
    with pytest.raises(LedgerMismatch, match="already"):
        tree.add(*node, np.ones(2))
    assert tree.missing() == ((3, 8),)


@pytest.mark.parametrize("node", [(1, 3), (0, 3), (3, 3), (4, 3), (-1, 1), (7, 9), (0, 9)])
def test_the_accumulator_refuses_what_is_no_node(node: Node) -> None:
    with pytest.raises(LedgerMismatch, match="no node"):
        Accumulator(8).add(*node, np.ones(2))


def test_the_accumulator_refuses_other_shapes_and_names_what_is_missing() -> None:
    tree = Accumulator(4)
    tree.add(0, 1, np.ones(2))
    others: list[Any] = [np.ones(3), np.ones(2, np.float32), np.ones((1, 2))]
    for wrong in others:
        with pytest.raises(LedgerMismatch, match=r"\[2, 3\)"):
            tree.add(2, 3, wrong)
    with pytest.raises(LedgerMismatch, match=r"\[1, 4\) of 4 are missing"):
        tree.root()


def test_the_accumulator_takes_read_only_memory_and_passes_on_what_is_not_finite() -> None:
    tree = Accumulator(2)
    for k, value in enumerate((np.inf, -np.inf)):
        tree.add(k, k + 1, np.frombuffer(np.array([value, 1e308]).tobytes()))
    assert np.isnan(tree.root()[0])
