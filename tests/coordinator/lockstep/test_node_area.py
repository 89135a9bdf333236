"""Buffers for the nodes of remote members: few, and summed to the same bits as the tree."""

import asyncio
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from phalanx_coordinator.lockstep import node_area
from phalanx_coordinator.lockstep.node_area import NodeArea, NoRoom, Place, buffers_in_reserve, buffers_needed
from phalanx_proto import blocks, reduction

SIZE = 3
Node = tuple[int, int]
Leaves = NDArray[np.float64]


def leaves(count: int, seed: int = 0) -> Leaves:
    """Values whose sum depends on the order of the additions."""
    generator = np.random.default_rng(seed)
    values: Leaves = generator.normal(size=(count, SIZE)) * 10.0 ** generator.integers(-8, 9, size=(count, SIZE))
    return values


def node_value(values: Leaves, node: Node) -> NDArray[np.float64]:
    lo, hi = node
    if hi - lo == 1:
        leaf: NDArray[np.float64] = values[lo].copy()
        return leaf
    middle = (lo + hi) // 2
    return node_value(values, (lo, middle)) + node_value(values, (middle, hi))


async def gather(
    area: NodeArea, values: Leaves, ranges: Sequence[Node], chance: random.Random | None
) -> dict[Node, NDArray[np.float64]]:
    """Let every range's nodes arrive, each member at its own pace; returns what is held in the end."""
    count = len(values)
    area.begin(count)

    async def member(place: Place, pauses: int) -> None:
        nodes = place.nodes
        buffers = await area.take(place)
        assert list(buffers) == list(nodes)
        for _ in range(pauses):
            await asyncio.sleep(0)
        for node in nodes:
            buffers[node][:] = node_value(values, node)
        await area.put(place)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for lo, hi in ranges:
            place = area.expect(reduction.maximal_nodes(lo, hi, count))
            group.create_task(member(place, chance.randrange(8) if chance else 0))
    return {(lo, hi): area._buffers[index].copy() for lo, hi, index in area.held}


def test_ranges_that_cover_all_blocks_leave_the_root_alone() -> None:
    values = leaves(12)
    area = NodeArea(np.zeros((9, SIZE)), SIZE)
    held = asyncio.run(gather(area, values, [(0, 5), (5, 11), (11, 12)], None))
    assert list(held) == [(0, 12)]
    assert held[0, 12].tobytes() == node_value(values, (0, 12)).tobytes()


def test_what_the_own_slots_compute_leaves_a_gap() -> None:
    values = leaves(8)
    area = NodeArea(np.zeros((9, SIZE)), SIZE)
    held = asyncio.run(gather(area, values, [(2, 4), (4, 8)], None))
    assert sorted(held) == [(2, 4), (4, 8)]
    nodes = {**held, (0, 2): node_value(values, (0, 2))}
    assert reduction.fold(nodes, 8).tobytes() == node_value(values, (0, 8)).tobytes()


def test_an_update_forgets_the_one_before() -> None:
    area = NodeArea(np.zeros((4, SIZE)), SIZE)
    first = asyncio.run(gather(area, leaves(4, 1), [(0, 3)], None))
    second = asyncio.run(gather(area, leaves(4, 2), [(1, 4)], None))
    assert sorted(first) == [(0, 2), (2, 3)]
    assert sorted(second) == [(1, 2), (2, 4)]


def test_a_member_waits_for_its_turn_and_for_room() -> None:
    async def story() -> list[str]:
        area = NodeArea(np.zeros((2, SIZE)), SIZE)
        area.begin(4)
        told: list[str] = []
        right, left = area.expect([(2, 4)]), area.expect([(0, 1), (1, 2)])

        async def second() -> None:
            await area.take(right)
            told.append("second has room")

        waiting = asyncio.create_task(second())
        await asyncio.sleep(0)
        buffers = await area.take(left)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        told.append("first is whole")
        for buffer in buffers.values():
            buffer[:] = 1.0
        await area.put(left)
        async with asyncio.timeout(20):
            await waiting
        return told

    assert asyncio.run(story()) == ["first is whole", "second has room"]


def test_what_a_lost_member_took_is_free_again_and_what_it_waited_for_is_not_kept() -> None:
    async def story() -> None:
        area = NodeArea(np.zeros((2, SIZE)), SIZE)
        area.begin(4)
        first, second = area.expect([(0, 1), (1, 2)]), area.expect([(2, 4)])
        await area.take(first)
        waiting = asyncio.create_task(area.take(second))
        await asyncio.sleep(0)
        assert not waiting.done()
        area.withdraw(first)
        area.withdraw(first)
        async with asyncio.timeout(20):
            (buffer,) = (await waiting).values()
        buffer[:] = 1.0
        await area.put(second)
        gone = area.expect([(0, 1)])
        area.withdraw(gone)
        again = area.expect([(0, 2)])
        (buffer,) = (await area.take(again)).values()
        buffer[:] = 2.0
        await area.put(again)
        area.withdraw(again)
        ((lo, hi, index),) = area.held
        assert (lo, hi, area._buffers[index].tolist()) == (0, 4, [3.0] * SIZE)

    asyncio.run(story())


def test_more_than_usual_is_used_only_where_waiting_frees_nothing() -> None:
    async def story() -> int:
        area = NodeArea(np.zeros((6, SIZE)), SIZE, usual=2)
        area.begin(8)
        islands = [area.expect([(k, k + 1)]) for k in (0, 2, 4, 6)]  # as if the members between were lost
        for island in islands[:2]:
            await area.take(island)
        waiting = asyncio.create_task(area.take(islands[2]))
        await asyncio.sleep(0)
        assert not waiting.done()
        await area.put(islands[0])
        await asyncio.sleep(0)
        assert not waiting.done()
        await area.put(islands[1])
        async with asyncio.timeout(20):
            await waiting
        await area.put(islands[2])
        return area.most

    assert asyncio.run(story()) == 3


def test_no_room_at_all_ends_the_run_by_name() -> None:
    async def story() -> None:
        area = NodeArea(np.zeros((1, SIZE)), SIZE)
        area.begin(4)
        await area.put(await _taken(area, [(0, 1)]))
        await _taken(area, [(2, 3)])

    with pytest.raises(NoRoom, match="more members were lost in one update than there are buffers for"):
        asyncio.run(story())


async def _taken(area: NodeArea, nodes: list[Node]) -> Place:
    place = area.expect(nodes)
    await area.take(place)
    return place


def test_large_values_are_added_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    values = leaves(4)
    small = asyncio.run(gather(NodeArea(np.zeros((4, SIZE)), SIZE), values, [(0, 1), (1, 4)], None))
    monkeypatch.setattr(node_area, "INLINE_BYTES", 0)
    large = asyncio.run(gather(NodeArea(np.zeros((4, SIZE)), SIZE), values, [(0, 1), (1, 4)], None))
    assert small.keys() == large.keys() == {(0, 4)}
    assert small[0, 4].tobytes() == large[0, 4].tobytes()


members = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12)


@settings(deadline=None)
@given(members, st.integers(1, 80), st.integers(0, 40), st.randoms(use_true_random=False))
def test_the_same_bits_in_little_memory_for_any_order(
    group: list[tuple[int, bool]], count: int, turn: int, chance: random.Random
) -> None:
    ranges = blocks.share_blocks(count, [weight for weight, _ in group], turn)
    remote = [span for span, (_, local) in zip(ranges, group, strict=True) if not local and span[0] < span[1]]
    own = [span for span, (_, local) in zip(ranges, group, strict=True) if local and span[0] < span[1]]
    values = leaves(count, turn)
    room = buffers_needed(count, [local for _, local in group], node_area.ROOMY)
    area = NodeArea(np.zeros((room, SIZE)), SIZE)
    held = asyncio.run(gather(area, values, remote, chance))
    mine = {node: node_value(values, node) for lo, hi in own for node in reduction.maximal_nodes(lo, hi, count)}
    assert reduction.fold({**held, **mine}, count).tobytes() == node_value(values, (0, count)).tobytes()
    assert area.most <= room


def test_little_values_get_room_for_everybody_at_once() -> None:
    depth = reduction.stack_depth(64)
    assert buffers_needed(64, [True, False, False, False], 8) == 3 * depth
    assert buffers_needed(64, [True], 8) == 1


def test_large_values_get_room_for_a_path_whatever_the_number_of_members() -> None:
    for members_ in (2, 8, 32):
        needed = buffers_needed(1024, [False] * members_, 200 << 20)
        assert needed <= 2 * reduction.stack_depth(1024)
    assert buffers_needed(1024, [False], 200 << 20) == reduction.stack_depth(1024)


def test_local_members_between_remote_ones_keep_their_nodes_apart() -> None:
    depth = reduction.stack_depth(1024)
    assert buffers_needed(1024, [False, True] * 3, 200 << 20) == 3 * depth
    assert buffers_needed(1024, [False, True, False, False], 200 << 20) == 3 * depth


def test_the_reserve_holds_every_block_where_these_are_few() -> None:
    assert buffers_in_reserve(64, [False] * 4) == 64
    assert buffers_in_reserve(4096, [False, True]) == 8 * reduction.stack_depth(4096)
