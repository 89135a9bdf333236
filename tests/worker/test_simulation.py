from itertools import pairwise
from typing import Any

import jax
import pytest

from phalanx_proto import philox
from phalanx_proto.errors import EngineFailed
from phalanx_worker import simulation
from tests.worker import builders

WIDTH = 2 * simulation.VECTOR
"""Samples of one vector of counters."""
LARGE = 1_099_511_627_781


@pytest.fixture(scope="module")
def device() -> Any:
    return builders.cpu()


def count(device: Any, start: int, stop: int, seed: int) -> int:
    return simulation.hits(device, start, stop, seed)[0]


@pytest.mark.parametrize(
    ("seed", "samples", "wanted"),
    [(42, 10**6, 785_856), (42, 10**7, 7_852_403), (7, 999_983, 785_268), (LARGE, 1_000_001, 785_553)],
)
def test_known_answers(device: Any, seed: int, samples: int, wanted: int) -> None:
    assert count(device, 0, samples, seed) == wanted


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (0, 1), (1, 2), (0, 2), (1, 3), (5, 6), (0, 3),
        (1, WIDTH), (0, WIDTH), (0, WIDTH + 1), (WIDTH - 1, WIDTH + 1), (WIDTH, 2 * WIDTH), (WIDTH + 1, 2 * WIDTH - 1),
        (3, 3 * WIDTH + 7), (777, 50_001), (12_345, 12_346), (2 * WIDTH, 2 * WIDTH + 5),
        ((1 << 33) - 5, (1 << 33) + 20_001), ((1 << 33) - WIDTH, 1 << 33), (1 << 33, (1 << 33) + 1),
        ((1 << 33) - 1, (1 << 33) + 1), ((1 << 34) + 3, (1 << 34) + 3 + 2 * WIDTH),
        ((1 << 40) - 1, (1 << 40) + 40_000), ((1 << 62) + 11, (1 << 62) + 33_333),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", [0, LARGE])
def test_the_kernel_is_the_reference_bit_for_bit(device: Any, start: int, stop: int, seed: int) -> None:
    assert count(device, start, stop, seed) == philox.hits(start, stop, seed)


@pytest.mark.parametrize("seed", [1, (1 << 32) - 1, 1 << 32, (1 << 63) + 5, (1 << 64) - 1])
def test_both_halves_of_the_seed_count(device: Any, seed: int) -> None:
    found = count(device, 11, 40_000, seed)
    assert found == philox.hits(11, 40_000, seed)
    others = {seed ^ 1, seed ^ (1 << 32), seed ^ (1 << 63)}
    assert all(found != count(device, 11, 40_000, other) for other in others)


def test_a_cut_changes_nothing(device: Any) -> None:
    """Across the turns after which the narrow counter is emptied, too."""
    whole = WIDTH * (simulation.TURNS * 2 + 1) + 5
    cuts = [0, 1, 999, WIDTH * simulation.TURNS, WIDTH * simulation.TURNS + 1, whole - 1, whole]
    parts = [count(device, lo, hi, 42) for lo, hi in pairwise(cuts)]
    assert sum(parts) == count(device, 0, whole, 42) == philox.hits(0, whole, 42)


def test_one_executable_counts_every_range(device: Any) -> None:
    count(device, 0, 5, 1)
    with builders.compilations() as compiled:
        for start, stop, seed in ((0, 7, 1), (9, 100_000, 2), ((1 << 33) + 1, (1 << 33) + 9, LARGE)):
            count(device, start, stop, seed)
    assert compiled == []


def test_time_is_measured(device: Any) -> None:
    assert simulation.hits(device, 0, 100_000, 1)[1] > 0


def test_the_known_words_are_required(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation.require()
    monkeypatch.setattr(simulation, "ROUNDS", 9)
    jax.clear_caches()
    with pytest.raises(EngineFailed, match=r"Philox4x32-10 .* gave .* wanted"):
        simulation.require()
