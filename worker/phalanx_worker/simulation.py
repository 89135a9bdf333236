"""The hit count of the simulation stream on one device: exact integers, so every device gives the same (DESIGN §3.10).

The kernel counts whole vectors of counters; a counter holds samples 2j and 2j + 1. The two vectors that the range only
touches are masked. Why the kernel is written as it is (docs/decisions/004): LLVM interleaves as many independent chains as
the widest type that a loop loads or stores allows, so the only thing carried is a uint8 count of misses a lane, and the
lane numbers are made inside the loop; words stay uint64 with dirty upper halves, since a masked product costs nothing.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from phalanx_proto.errors import EngineFailed

VECTOR = 8192
"""Counters of one turn of the loop; a power of two, so the high counter word is one number a vector."""
TURNS = 126
"""Turns before the uint8 count is emptied: at most two misses a turn, 252 <= 255."""
ROUNDS = 10

_U64 = jnp.uint64
_LOW, _HALF = 0xFFFFFFFF, 32


def philox(low: Any, high: Any, key0: Any, key1: Any, rest: tuple[Any, Any] | None = None) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10 (Salmon et al., SC 2011) at counter (low, high, *rest) on uint64 lanes; upper halves are dirty."""
    mask, half = _U64(_LOW), _U64(_HALF)
    c0, c1 = low, high
    c2, c3 = rest if rest is not None else (_U64(0), _U64(0))
    for _ in range(ROUNDS):
        p0, p1 = (c0 & mask) * _U64(0xD2511F53), (c2 & mask) * _U64(0xCD9E8D57)
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ key0, p1, (p0 >> half) ^ c3 ^ key1, p0
        key0, key1 = (key0 + _U64(0x9E3779B9)) & mask, (key1 + _U64(0xBB67AE85)) & mask
    return c0, c1, c2, c3


def _miss(a: Any, b: Any) -> Any:
    """1 where the point of words (a, b) lies outside the quarter circle, else 0: X*X + Y*Y < 2**63."""
    x, y = ((a & _U64(_LOW)) >> _U64(1)) | _U64(1), ((b & _U64(_LOW)) >> _U64(1)) | _U64(1)
    return (x * x + y * y) >> _U64(62)


def _misses(vector: Any, key: tuple[Any, Any]) -> tuple[Any, Any]:
    """Misses of the even and the odd samples of one vector, uint64 lanes."""
    base = vector * _U64(VECTOR)
    low = (base & _U64(_LOW)) + lax.iota(jnp.uint64, VECTOR)
    w0, w1, w2, w3 = philox(low, base >> _U64(_HALF), *key)
    return _miss(w0, w1), _miss(w2, w3)


def _whole(first: Any, last: Any, key: tuple[Any, Any]) -> Any:
    """Misses in vectors [first, last), int64."""

    def turn(vector: Any, missed: Any) -> Any:
        even, odd = _misses(vector, key)
        return missed + (even + odd).astype(jnp.uint8)

    def group(index: Any, total: Any) -> Any:
        start = first + index * _U64(TURNS)
        missed = lax.fori_loop(start, jnp.minimum(start + _U64(TURNS), last), turn, jnp.zeros(VECTOR, jnp.uint8))
        return total + jnp.sum(missed.astype(jnp.int32)).astype(jnp.int64)

    groups = (last - first + _U64(TURNS - 1)) // _U64(TURNS)
    return lax.fori_loop(_U64(0), groups, group, jnp.int64(0))


def _part(vector: Any, start: Any, stop: Any, key: tuple[Any, Any]) -> Any:
    """Misses of the samples of one vector that lie in [start, stop), int64."""
    even, odd = _misses(vector, key)
    sample = (vector * _U64(VECTOR) + lax.iota(jnp.uint64, VECTOR)) * _U64(2)
    inside = [((s >= start) & (s < stop)).astype(jnp.uint64) for s in (sample, sample + _U64(1))]
    return jnp.sum((even * inside[0] + odd * inside[1]).astype(jnp.int32)).astype(jnp.int64)


def _count(start: Any, stop: Any, key0: Any, key1: Any) -> Any:
    """Hits among samples [start, stop); uint64 scalars in, int64 out."""
    size, key = _U64(2 * VECTOR), (key0, key1)
    first, last = (start + size - _U64(1)) // size, stop // size
    split = first <= last
    whole = jnp.where(split, _whole(first, jnp.maximum(first, last), key), 0)
    head, tail = (start, jnp.where(split, first * size, stop)), (last * size, jnp.where(split, stop, last * size))
    bounds = jnp.stack([jnp.stack(head), jnp.stack(tail)])

    def end(k: Any, missed: Any) -> Any:
        low, high = bounds[k, 0], bounds[k, 1]
        return missed + _part(low // size, low, high, key)

    return (stop - start).astype(jnp.int64) - lax.fori_loop(0, 2, end, whole)


@functools.cache
def _executable(platform: str) -> Any:
    # Only pays on AVX-512, and integers are exact either way.
    options = {"xla_cpu_prefer_vector_width": 512} if platform == "cpu" else None
    return jax.jit(_count, compiler_options=options)


def hits(device: Any, start: int, stop: int, seed: int) -> tuple[int, int]:
    """(hits, nanoseconds) of samples [start, stop) of ``seed``, on the device."""
    began = time.perf_counter_ns()
    with jax.default_device(device):
        words = [np.uint64(word) for word in (start, stop, seed & _LOW, seed >> _HALF)]
        total = int(_executable(device.platform)(*words))
    return total, time.perf_counter_ns() - began


KNOWN = {
    (0, 0, 0, 0, 0, 0): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    (_LOW,) * 6: (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0): (
        0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1,
    ),
}  # fmt: skip
"""Random123's vectors for Philox4x32-10: counter and key, then the words."""


def require() -> None:
    """The known answers, compiled here; raises EngineFailed."""
    cases = np.array(list(KNOWN), np.uint64).T
    compiled = jax.jit(lambda c: jnp.stack(philox(c[0], c[1], c[4], c[5], rest=(c[2], c[3]))) & _U64(_LOW))
    for row, (case, wanted) in zip(np.asarray(compiled(cases)).T, KNOWN.items(), strict=True):
        if tuple(map(int, row)) != wanted:
            raise EngineFailed(
                f"self-test: Philox4x32-10 of {case} gave {row.tolist()}, wanted {wanted}; jaxlib computes wrong "
                "integers on this machine: install another version of it"
            )
