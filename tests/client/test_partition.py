"""The split into roles as pure arithmetic; what a Dataset makes of it is in test_dataset.py."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.partition import TEST, TRAIN, VALIDATION, assign
from phalanx_proto.errors import InvalidRequest


def counts(labels: np.ndarray, roles: np.ndarray) -> list[list[int]]:
    """Rows by class, then by role."""
    table = [np.bincount(roles[labels == label], minlength=3).tolist() for label in range(labels.max() + 1)]
    return [[int(n) for n in row] for row in table]


def test_each_class_keeps_its_proportion() -> None:
    labels = np.repeat([0, 1, 2], [50, 30, 10])
    roles = assign(labels, None, 0.2, 0.1, 42)
    assert counts(labels, roles) == [[35, 10, 5], [21, 6, 3], [7, 2, 1]]


def test_largest_remainders_take_what_is_left() -> None:
    labels = np.zeros(11, np.int64)  # quotas 5.5, 2.75, 2.75
    assert counts(labels, assign(labels, None, 0.25, 0.25, 1)) == [[5, 3, 3]]
    labels = np.zeros(7, np.int64)  # quotas 4.2, 1.4, 1.4: a tie goes to validation
    assert counts(labels, assign(labels, None, 0.2, 0.2, 1)) == [[4, 2, 1]]


def test_each_role_has_a_row_of_every_class() -> None:
    labels = np.repeat([0, 1], [1000, 3])
    assert counts(labels, assign(labels, None, 0.01, 0.01, 1)) == [[980, 10, 10], [1, 1, 1]]
    assert counts(labels[-3:] - 1, assign(labels[-3:] - 1, None, 0.45, 0.45, 1)) == [[1, 1, 1]]


def test_a_class_too_small_for_its_roles_is_refused() -> None:
    labels = np.repeat([0, 1], [10, 2])
    with pytest.raises(InvalidRequest, match=r"class 1 has too few rows \(2\).*train, validation and test"):
        assign(labels, None, 0.2, 0.2, 1)
    assert counts(labels, assign(labels, None, 0.0, 0.2, 1)) == [[8, 0, 2], [1, 0, 1]]


def test_a_class_without_rows_is_none_of_its_business() -> None:
    labels = np.repeat([0, 3], [10, 10])
    assert counts(labels, assign(labels, None, 0.2, 0.2, 1))[1] == [0, 0, 0]


def test_too_few_rows_at_all() -> None:
    with pytest.raises(InvalidRequest, match="2 rows cannot fill train, validation and test"):
        assign(np.zeros(2, np.int64), None, 0.2, 0.2, 1)


def test_the_seed_decides_and_nothing_else() -> None:
    labels = np.arange(1000) % 3
    one = assign(labels, None, 0.2, 0.2, 42)
    np.testing.assert_array_equal(one, assign(labels, None, 0.2, 0.2, 42))
    assert not np.array_equal(one, assign(labels, None, 0.2, 0.2, 43))
    assert hashlib.sha256(one.tobytes()).hexdigest() == "65049f3cd22d6c4fd223c434395df3a39af9141a01be5684d42ccc2ddbfbda1e"


def test_a_million_rows() -> None:
    labels = np.arange(1_000_000) % 10
    roles = assign(labels, None, 0.15, 0.15, 42)
    assert counts(labels, roles) == [[70_000, 15_000, 15_000]] * 10


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_million_rows_in_groups(size: int) -> None:
    groups = np.arange(1_000_000) // size
    labels = groups % 10
    roles = assign(labels, groups, 0.15, 0.15, 42)
    assert counts(labels, roles) == [[70_000, 15_000, 15_000]] * 10


def test_groups_of_many_sizes_come_near_the_proportions() -> None:
    sizes = np.arange(1, 121)
    groups = np.repeat(np.arange(120), sizes)
    labels = (np.arange(len(groups)) + groups) % 3
    shares = np.array(counts(labels, assign(labels, groups, 0.2, 0.1, 5))) / np.bincount(labels)[:, None]
    np.testing.assert_allclose(shares, [[0.7, 0.2, 0.1]] * 3, atol=0.01)


def test_few_groups_fill_every_role() -> None:
    groups = np.repeat([0, 1, 2], [10, 20, 30])
    labels = np.arange(60) % 2
    roles = assign(labels, groups, 0.2, 0.2, 1)
    assert sorted(int(role) for role in roles[[0, 10, 30]]) == [TRAIN, VALIDATION, TEST]
    with pytest.raises(InvalidRequest, match="2 groups cannot fill train, validation and test"):
        assign(labels[:30], groups[:30], 0.2, 0.2, 1)


def test_a_class_must_stay_in_train() -> None:
    groups = np.repeat([0, 1, 2], 10)
    with pytest.raises(InvalidRequest, match="no training row is left of class"):
        assign(groups, groups, 0.3, 0.3, 1)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    labels=st.lists(st.integers(0, 3), min_size=12, max_size=80),
    validation=st.sampled_from([0.0, 0.1, 0.2, 0.33, 0.45]),
    test=st.sampled_from([0.0, 0.15, 0.25, 0.5]),
    seed=st.integers(0, 2**64 - 1),
)
def test_largest_remainder_is_within_a_row_of_the_quota(labels: list[int], validation: float, test: float, seed: int) -> None:
    array = np.array(labels)
    sizes = np.bincount(array)
    wanted = 1 + (validation > 0) + (test > 0)
    if np.any((sizes > 0) & (sizes < wanted)):
        with pytest.raises(InvalidRequest):
            assign(array, None, validation, test, seed)
        return
    roles = assign(array, None, validation, test, seed)
    fractions = [1 - validation - test, validation, test]
    for size, row in zip(sizes.tolist(), counts(array, roles), strict=True):
        assert sum(row) == size
        for count, fraction in zip(row, fractions, strict=True):
            assert count == 0 if fraction == 0 else size == 0 or count >= 1
        quotas = [size * fraction for fraction in fractions if fraction]
        if min(quotas) >= 1:  # nobody had to be given a first row
            held = [count for count, fraction in zip(row, fractions, strict=True) if fraction]
            assert all(abs(count - quota) < 1 for count, quota in zip(held, quotas, strict=True))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    members=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=3, max_size=80),
    seed=st.integers(0, 1000),
)
def test_groups_are_never_split(members: list[tuple[int, int]], seed: int) -> None:
    groups = np.unique([group for group, _ in members], return_inverse=True)[1]
    labels = np.array([label for _, label in members])
    try:
        roles = assign(labels, groups, 0.2, 0.2, seed)
    except InvalidRequest:
        return
    for group in range(groups.max() + 1):
        assert len(set(roles[groups == group].tolist())) == 1
    assert set(roles.tolist()) == {TRAIN, VALIDATION, TEST}
    assert set(labels[roles == TRAIN].tolist()) == set(labels.tolist())
