"""Blocks of the global batch: how large, how many, whose (DESIGN §3.2). Pure integer functions.

Ranges are half-open. Block ``k`` of a batch is its rows [k * block, (k + 1) * block); the last one may be cut short.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from phalanx_proto.errors import InvalidRequest

Range = tuple[int, int]


def auto_block(batch: int) -> int:
    """Rows of a block for a global batch, whatever the placement: 32 -> 2, 256 -> 16, 1536 -> 128, 65536 -> 1024."""
    _at_least(1, batch=batch)
    small = _power_of_two(batch // 12)
    return small if small <= 128 else max(128, _power_of_two(batch // 64))


def _power_of_two(value: int) -> int:
    """The power of two at or below ``value``, at least 1."""
    return 1 << max(value.bit_length() - 1, 0)


def block_count(rows: int, block: int) -> int:
    """Blocks of a batch of ``rows`` rows."""
    _at_least(0, rows=rows)
    _at_least(1, block=block)
    return -(-rows // block)


def rows_in(lo: int, hi: int, block: int, rows: int) -> int:
    """Real rows (padding left out) in blocks [lo, hi) of a batch of ``rows`` rows."""
    return min(hi * block, rows) - min(lo * block, rows)


def share_blocks(blocks: int, weights: Sequence[int | float], turn: int) -> tuple[Range, ...]:
    """Contiguous ranges that cover [0, blocks), one a member in the order of ``weights``; some may be empty.

    Whole blocks go by weight, largest remainder, ties to the earlier member. Nobody is left out for good: with fewer
    blocks than members the members ``turn``, ``turn + 1``, ... (modulo their number) take one each, so everyone has
    worked after as many turns as there are members; otherwise a member whose share rounds to none takes one block from
    the largest share at turn 0 and then each time its exact shares add up to one more. ``turn`` is the update number.
    """
    _at_least(0, blocks=blocks, turn=turn)
    counts, shares = _counts(blocks, tuple(weights))
    members = len(counts)
    if blocks < members:
        return _ranges(tuple(int((member - turn) % members < blocks) for member in range(members)))
    if not shares:
        return _ranges(counts)
    moved = list(counts)
    for member, (part, whole) in shares:
        if -(-part * (turn + 1) // whole) > -(-part * turn // whole):
            moved[moved.index(max(moved))] -= 1
            moved[member] += 1
    return _ranges(tuple(moved))


def split_even(lo: int, hi: int, slots: int, turn: int) -> tuple[Range, ...]:
    """[lo, hi) cut into one contiguous range a slot, as even as whole blocks allow; empty ones rotate with ``turn``."""
    _at_least(1, slots=slots)
    return tuple((lo + a, lo + b) for a, b in share_blocks(hi - lo, (1,) * slots, turn))


def merge_ranges(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Sorted, disjoint ranges with those that touch made one."""
    found: list[Range] = []
    for lo, hi in ranges:
        if found and found[-1][1] == lo:
            found[-1] = (found[-1][0], hi)
        else:
            found.append((lo, hi))
    return tuple(found)


def share_ranges(ranges: Sequence[Range], weights: Sequence[int | float], turn: int) -> tuple[tuple[int, Range], ...]:
    """Cut disjoint ``ranges`` among members as ``share_blocks`` does with one: (index of the member, range), left to right.

    A member gets what is contiguous where the gaps between the ranges are left out, so in few pieces.
    """
    shares = share_blocks(sum(hi - lo for lo, hi in ranges), weights, turn)
    pieces = []
    passed = 0  # blocks of the ranges to the left
    for lo, hi in ranges:
        for member, (first, last) in enumerate(shares):
            a, b = max(first - passed + lo, lo), min(last - passed + lo, hi)
            if a < b:
                pieces.append((member, (a, b)))
        passed += hi - lo
    return tuple(pieces)


@lru_cache(maxsize=1024)
def _counts(blocks: int, weights: tuple[int | float, ...]) -> tuple[tuple[int, ...], tuple[tuple[int, tuple[int, int]], ...]]:
    """Blocks by largest remainder, and (member, exact share as a fraction) of those who get none."""
    if not weights:
        raise InvalidRequest("there is no member to share the blocks")
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise InvalidRequest(f"weights must be positive and finite, not {list(weights)}")
    exact = [Fraction(weight) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    parts = [int(weight * scale) * blocks for weight in exact]
    whole = sum(int(weight * scale) for weight in exact)
    counts = [part // whole for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda member: (-(parts[member] % whole), member))
    for member in by_remainder[: blocks - sum(counts)]:
        counts[member] += 1
    none = tuple((member, (parts[member], whole)) for member, count in enumerate(counts) if count == 0)
    return tuple(counts), none


@lru_cache(maxsize=1024)
def _ranges(counts: tuple[int, ...]) -> tuple[Range, ...]:
    ends = [sum(counts[: member + 1]) for member in range(len(counts))]
    return tuple((end - count, end) for end, count in zip(ends, counts, strict=True))


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise InvalidRequest(f"{name} must be at least {least}, not {value}")
