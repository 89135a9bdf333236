import os

import numpy as np
import psutil
import pytest

from phalanx_worker.arena import ALIGNMENT, Arena


@pytest.fixture
def arena() -> Arena:
    return Arena.create({"a": ((3, 5), np.float32), "empty": ((0, 4), np.float64), "b": ((7,), np.int64)})


def test_arrays_start_at_zero_with_their_shapes_and_types(arena: Arena) -> None:
    assert arena["a"].shape == (3, 5) and arena["a"].dtype == np.float32 and not arena["a"].any()
    assert arena["b"].shape == (7,) and arena["b"].dtype == np.int64
    assert arena["empty"].shape == (0, 4)
    arena.close()


def test_arrays_are_aligned_and_do_not_overlap(arena: Arena) -> None:
    arena["a"][:] = 1
    arena["b"][:] = -1
    assert (arena["a"] == 1).all() and (arena["b"] == -1).all()
    assert all(place.offset % ALIGNMENT == 0 for place in arena.layout.values())
    assert all(arena[name].ctypes.data % 64 == 0 for name in ("a", "b"))
    arena.close()


def test_membership_is_by_name(arena: Arena) -> None:
    assert "a" in arena and "c" not in arena
    with pytest.raises(KeyError):
        arena["c"]
    arena.close()


def test_an_attached_arena_is_the_same_memory(arena: Arena) -> None:
    other = Arena.attach(os.dup(arena.descriptor), arena.describe())
    arena["a"][1, 2] = 7
    other["b"][:] = np.arange(7)
    assert other["a"][1, 2] == 7
    assert arena["b"].tolist() == list(range(7))
    other.close()
    arena.close()


def test_views_outlive_the_descriptor(arena: Arena) -> None:
    view = arena["b"]
    before = psutil.Process().num_fds()
    arena.close()
    arena.close()
    assert psutil.Process().num_fds() == before - 1
    view[0] = 3
    assert view[0] == 3


def test_renamed_memory_is_shared_and_closes_by_itself(arena: Arena) -> None:
    arena["a"][:] = np.arange(15).reshape(3, 5)
    renamed = arena.renamed("x", (15,), np.float32)
    assert renamed["x"].tolist() == list(range(15))
    arena.close()
    renamed["x"][0] = 9
    assert renamed["x"][0] == 9
    renamed.close()


def test_the_memory_has_no_name() -> None:
    arena = Arena.create({"a": ((1 << 20,), np.uint8)})
    assert os.fstat(arena.descriptor).st_nlink == 0
    assert not os.get_inheritable(arena.descriptor)
    arena.close()


def test_untouched_pages_cost_nothing() -> None:
    arena = Arena.create({"a": ((1 << 40,), np.uint8)})
    arena["a"][1 << 39] = 1
    assert os.fstat(arena.descriptor).st_blocks * 512 <= 1 << 21
    arena.close()
