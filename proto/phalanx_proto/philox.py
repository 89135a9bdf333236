"""Philox4x32-10 in NumPy: the reference for every random word of Phalanx.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The layout of key and
counter (DESIGN §3.10): key = (seed low, seed high), counter = (j low, j high, stream, lane). A stream tag keeps uses
apart; a lane (an epoch, an update) keeps repetitions of one use apart. Integer arithmetic only, so every machine
gives the same words.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_proto.errors import InvalidRequest

STREAM_SIMULATION = 0
STREAM_ORDER = 1
STREAM_INITIAL = 2
STREAM_PARTITION = 3
STREAM_KEYS = 4

Word = np.uint32
Words = NDArray[np.uint32]
_Wide = NDArray[np.uint64]

_MASK = 0xFFFFFFFF
_LOW, _SHIFT = np.uint64(_MASK), np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_COUNTERS = 1 << 13
"""Counters of one pass: its arrays stay in the second-level cache and memory stays bounded."""


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[int, int], rounds: int = 10) -> tuple[Words, ...]:
    """Four uint32 arrays of random words, one of each for every counter.

    ``counter`` holds four integer arrays (or integers) that broadcast; they and those of ``key`` are below 2**32.
    """
    c0, c1, c2, c3 = (c.astype(Word) for c in _rounds(tuple(np.asarray(c, np.uint64) for c in counter), key, rounds))
    return c0, c1, c2, c3


def _rounds(counter: tuple[_Wide, ...], key: tuple[int, int], rounds: int = 10) -> tuple[_Wide, ...]:
    """The four words as uint64 arrays of their own; works in place, for most of the time would go into fresh memory."""
    c0, c1, c2, c3 = (np.array(c) for c in np.broadcast_arrays(*counter))
    high = np.empty_like(c0)
    k0, k1 = key
    for _ in range(rounds):
        c0 *= _MULTIPLIERS[0]
        c2 *= _MULTIPLIERS[1]
        c1 ^= np.uint64(k0)
        c1 ^= np.right_shift(c2, _SHIFT, out=high)
        c3 ^= np.uint64(k1)
        c3 ^= np.right_shift(c0, _SHIFT, out=high)
        c0 &= _LOW
        c2 &= _LOW
        c0, c1, c2, c3 = c1, c2, c3, c0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def key_of(seed: int) -> tuple[int, int]:
    """The Philox key (low, high) of a seed; ``InvalidRequest`` unless it is an integer in 0 .. 2**64 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
        raise InvalidRequest(f"seed {seed!r} is not an integer from 0 to 2**64 - 1")
    return int(seed) & _MASK, int(seed) >> 32


def words(seed: int, stream: int, count: int, lane: int = 0, start: int = 0) -> Words:
    """uint32[count]: the words ``start`` .. ``start + count`` of one stream and lane, four to a counter, in order."""
    key = key_of(seed)
    if not (0 <= stream <= _MASK and 0 <= lane <= _MASK):
        raise InvalidRequest(f"stream {stream} and lane {lane} must be from 0 to 2**32 - 1")
    if start < 0 or count < 0 or start + count > 1 << 66:
        raise InvalidRequest(f"words {start} to {start + count} are outside the stream's 2**66 words")
    first, last = start // 4, -(-(start + count) // 4)
    out = np.empty((last - first, 4), Word)
    for done in range(0, last - first, _COUNTERS):
        part = out[done : done + _COUNTERS]
        for column, values in enumerate(_rounds(_counters(first + done, len(part), stream, lane), key)):
            part[:, column] = values
    return out.reshape(-1)[start - 4 * first :][:count]


def _counters(first: int, count: int, stream: int, lane: int) -> tuple[_Wide, ...]:
    low = np.uint64(first) + np.arange(count, dtype=np.uint64)
    return low & _LOW, low >> _SHIFT, np.asarray(stream, np.uint64), np.asarray(lane, np.uint64)


def uniform(seed: int, stream: int, count: int, lane: int = 0) -> NDArray[np.float64]:
    """float64[count] in [0, 1): multiples of 2**-53, each from two words; every step is exact."""
    pairs = words(seed, stream, 2 * count, lane).reshape(-1, 2).astype(np.uint64)
    high, low = pairs[:, 0] >> np.uint64(5), pairs[:, 1] >> np.uint64(6)
    return ((high << np.uint64(26)) | low).astype(np.float64) * 2.0**-53


def hits(start: int, stop: int, seed: int) -> int:
    """Samples in [start, stop) of the simulation stream that fall into the quarter disc (DESIGN §3.10), exactly."""
    key = key_of(seed)
    if not 0 <= start <= stop <= 1 << 65:
        raise InvalidRequest(f"samples {start} to {stop} are not a range inside 0 .. 2**65")
    found = 0
    for pair in range(start // 2, -(-stop // 2), _COUNTERS):
        count = min(_COUNTERS, -(-stop // 2) - pair)
        inside = _inside(_rounds(_counters(pair, count, STREAM_SIMULATION, 0), key))
        found += int(np.count_nonzero(inside[max(start - 2 * pair, 0) : stop - 2 * pair]))
    return found


def _inside(values: tuple[_Wide, ...]) -> NDArray[np.bool_]:
    """bool[2 * counters]: whether samples 2j and 2j + 1 are hits, in order."""
    one, two = np.uint64(1), np.uint64(2)
    squares = [((word >> two) * two + one) ** 2 for word in values]
    even, odd = squares[0] + squares[1], squares[2] + squares[3]
    return np.stack([even, odd], axis=1).reshape(-1) < np.uint64(1 << 62)
