"""The hit count of the simulation stream on one device: exact integers, so every device gives the same (DESIGN §3.10).

The kernel counts whole vectors of counters; a counter holds samples 2j and 2j + 1. What lies before the first whole counter
and after the last one is masked in one more vector.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from phalanx_proto.errors import EngineFailed

LANES = 8192
"""Counters of one vector."""
ROUNDS = 10
STRIDE = 1 << 34
"""Samples of one call at most: the count of iterations stays an int32, and a call stays short."""


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10 (Salmon et al., SC 2011) on uint32 arrays."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0 = c0.astype(jnp.uint64) * jnp.uint64(0xD2511F53)
        p1 = c2.astype(jnp.uint64) * jnp.uint64(0xCD9E8D57)
        high0, high1 = (p0 >> jnp.uint64(32)).astype(jnp.uint32), (p1 >> jnp.uint64(32)).astype(jnp.uint32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, p1.astype(jnp.uint32), high0 ^ c3 ^ k1, p0.astype(jnp.uint32)
        k0, k1 = k0 + jnp.uint32(0x9E3779B9), k1 + jnp.uint32(0xBB67AE85)
    return c0, c1, c2, c3


def _hit(a: Any, b: Any) -> Any:
    x, y = (((w >> jnp.uint32(2)) * jnp.uint32(2) + jnp.uint32(1)).astype(jnp.uint64) for w in (a, b))
    return (x * x + y * y) < jnp.uint64(1 << 62)


def _vector(first: Any, key: tuple[Any, Any]) -> tuple[Any, Any]:
    """Whether samples 2j and 2j + 1 are hits, for the LANES counters j from ``first``."""
    counter = first + jnp.arange(LANES, dtype=jnp.uint64)
    zero = jnp.zeros((LANES,), jnp.uint32)
    low, high = counter.astype(jnp.uint32), (counter >> jnp.uint64(32)).astype(jnp.uint32)
    w0, w1, w2, w3 = philox((low, high, zero, zero), key)
    return _hit(w0, w1), _hit(w2, w3)


def _count(start: Any, stop: Any, seed: Any) -> Any:
    """Hits among samples [start, stop), uint64 scalars."""
    key = seed.astype(jnp.uint32), (seed >> jnp.uint64(32)).astype(jnp.uint32)
    one = jnp.uint64(1)
    inner, outer = (start + one) >> one, stop >> one
    whole = jnp.where(outer > inner, (outer - inner) // jnp.uint64(LANES), jnp.uint64(0)).astype(jnp.int32)

    def full(k: Any, total: Any) -> Any:
        even, odd = _vector(inner + k.astype(jnp.uint64) * jnp.uint64(LANES), key)
        return total + jnp.sum(even.astype(jnp.int32) + odd.astype(jnp.int32), dtype=jnp.int32).astype(jnp.int64)

    def masked(first: Any, low: Any, high: Any) -> Any:
        even, odd = _vector(first, key)
        sample = (first + jnp.arange(LANES, dtype=jnp.uint64)) * jnp.uint64(2)
        inside = [(s >= low) & (s < high) for s in (sample, sample + one)]
        hits = (even & inside[0]).astype(jnp.int32) + (odd & inside[1]).astype(jnp.int32)
        return jnp.sum(hits, dtype=jnp.int32).astype(jnp.int64)

    total = lax.fori_loop(0, whole, full, jnp.int64(0))
    rest = inner + whole.astype(jnp.uint64) * jnp.uint64(LANES)
    head = masked(start >> one, start, jnp.minimum(inner * jnp.uint64(2), stop))
    return total + head + masked(rest, rest * jnp.uint64(2), stop)


@functools.cache
def _executable(platform: str) -> Any:
    options = {"xla_cpu_prefer_vector_width": 512} if platform == "cpu" else None
    return jax.jit(_count, compiler_options=options)


def hits(device: Any, start: int, stop: int, seed: int) -> tuple[int, int]:
    """(hits, nanoseconds) of samples [start, stop) of ``seed``, on the device."""
    began = time.perf_counter_ns()
    total = 0
    with jax.default_device(device):
        for low in range(start, stop, STRIDE):
            span = np.uint64(low), np.uint64(min(low + STRIDE, stop)), np.uint64(seed)
            total += int(_executable(device.platform)(*span))
    return total, time.perf_counter_ns() - began


def require() -> None:
    """Philox against Random123's vectors, compiled here; raises EngineFailed."""
    ones = 0xFFFFFFFF
    cases = {
        (0, 0, 0, 0, 0, 0): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        (ones, ones, ones, ones, ones, ones): (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0): (
            0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1,
        ),
    }  # fmt: skip
    words = np.array(list(cases), np.uint32).T
    found = np.array(jax.jit(lambda w: philox(tuple(w[:4]), (w[4], w[5])))(words)).T
    for row, (case, wanted) in zip(found, cases.items(), strict=True):
        if tuple(map(int, row)) != wanted:
            raise EngineFailed(
                f"self-test: Philox4x32-10 of {case} gave {row.tolist()}, wanted {wanted}; "
                f"jaxlib {jax.lib.__version__} computes wrong integers on this machine: install another one"
            )
