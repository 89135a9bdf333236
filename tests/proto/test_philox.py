from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx_proto import philox
from phalanx_proto.errors import InvalidRequest

ONES = 0xFFFFFFFF
# Random123, tests/kat_vectors: philox4x32 10
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_published_vectors(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    found = philox.philox4x32(counter, key)
    assert tuple(int(word) for word in found) == expected
    assert {word.dtype for word in found} == {np.dtype(np.uint32)}


def test_counters_are_arrays_that_broadcast_and_stay_as_they_are() -> None:
    counter = tuple(np.array([answer[0][i] for answer in KNOWN_ANSWERS[:2]], np.uint32) for i in range(4))
    before = [words.copy() for words in counter]
    single = philox.philox4x32((counter[0], 0, 0, 0), (0, 0))
    assert [int(words[0]) for words in single] == list(KNOWN_ANSWERS[0][2])
    assert all(words.shape == (2,) for words in single)
    assert all(np.array_equal(a, b) for a, b in zip(before, counter, strict=True))


def test_words_follow_the_counter_layout() -> None:
    seed = (0x299F31D0 << 32) | 0xA4093822
    first = (0x85A308D3 << 32) | 0x243F6A88
    found = philox.words(seed, 0x13198A2E, 4, lane=0x03707344, start=4 * first)
    assert found.tolist() == list(KNOWN_ANSWERS[2][2])


@given(start=st.integers(0, 1 << 40), count=st.integers(0, 40), lane=st.integers(0, ONES))
def test_words_are_one_sequence(start: int, count: int, lane: int) -> None:
    whole = philox.words(9, philox.STREAM_KEYS, 50, lane=lane, start=start)
    assert np.array_equal(philox.words(9, philox.STREAM_KEYS, count, lane=lane, start=start + 7)[:43], whole[7:][:count])


def test_words_do_not_depend_on_the_pass() -> None:
    whole = philox.words(3, 1, 4 * philox._COUNTERS + 10)
    assert np.array_equal(whole[-14:], philox.words(3, 1, 14, start=len(whole) - 14))


def test_streams_lanes_and_seeds_differ() -> None:
    tags = range(5)
    found = {philox.words(seed, tag, 4, lane=lane).tobytes() for seed in (0, 1 << 32) for tag in tags for lane in (0, 1)}
    assert len(found) == 20


def test_uniform_is_exact_53_bits() -> None:
    found = philox.uniform(42, philox.STREAM_INITIAL, 1000, lane=3)
    pairs = philox.words(42, philox.STREAM_INITIAL, 2000, lane=3).tolist()
    expected = [((pairs[i] >> 5) * 2**26 + (pairs[i + 1] >> 6)) / 2**53 for i in range(0, 2000, 2)]
    assert found.tolist() == expected
    assert found.min() >= 0 and found.max() < 1


@pytest.mark.parametrize("seed", [-1, 1 << 64, 1.0, "1", None, True])
def test_a_seed_that_is_no_64_bit_integer_is_refused(seed: int) -> None:
    with pytest.raises(InvalidRequest, match="seed"):
        philox.words(seed, 0, 1)


def test_numpy_integers_are_seeds() -> None:
    largest = (1 << 64) - 1
    assert np.array_equal(philox.words(np.uint64(largest), 0, 8), philox.words(largest, 0, 8))  # type: ignore[arg-type]


def test_ranges_outside_the_stream_are_refused() -> None:
    for stream, count, lane, start in (
        (1 << 32, 1, 0, 0),
        (0, 1, -1, 0),
        (0, -1, 0, 0),
        (0, 1, 0, -1),
        (0, 1, 0, 1 << 66),
    ):
        with pytest.raises(InvalidRequest):
            philox.words(0, stream, count, lane=lane, start=start)
    for begin, end in ((-1, 1), (2, 1), (0, (1 << 65) + 1)):
        with pytest.raises(InvalidRequest):
            philox.hits(begin, end, 0)


@pytest.mark.parametrize(
    ("samples", "seed", "expected"),
    [(1_000_000, 42, 785_856), (999_983, 7, 785_268), (1_000_001, 1_099_511_627_781, 785_553)],
)
def test_known_hits(samples: int, seed: int, expected: int) -> None:
    assert philox.hits(0, samples, seed) == expected


def test_known_hits_of_ten_million() -> None:
    assert philox.hits(0, 10_000_000, 42) == 7_852_403


def plain_hit(sample: int, seed: int) -> bool:
    """DESIGN §3.10 in Python integers, one sample at a time."""
    counter = (sample // 2 & ONES, sample // 2 >> 32, 0, 0)
    word = [int(w) for w in philox.philox4x32(counter, (seed & ONES, seed >> 32))]
    x, y = (2 * (w >> 2) + 1 for w in word[2 * (sample % 2) :][:2])
    return x * x + y * y < 1 << 62


@given(start=st.one_of(st.integers(0, 100), st.integers(2**33 - 9, 2**33 + 9)), seed=st.integers(0, (1 << 64) - 1))
def test_hits_agree_with_plain_integers(start: int, seed: int) -> None:
    assert philox.hits(start, start + 9, seed) == sum(plain_hit(sample, seed) for sample in range(start, start + 9))


@given(cuts=st.lists(st.integers(0, 20_000), max_size=5))
def test_hits_of_parts_add_up(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), 20_000]
    assert sum(philox.hits(a, b, 5) for a, b in pairwise(ends)) == philox.hits(0, 20_000, 5)
