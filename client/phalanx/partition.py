"""Which role each row takes: a pure function of (labels, groups, fractions, seed).

Rows of one class are shuffled by Philox keys and shared out by largest remainder. Groups are never split: groups alike
in majority class and size are shared out by largest remainder, and what is left over goes, largest group first, to
the role that lacks most of what the group holds.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import philox
from phalanx_proto.errors import InvalidRequest

TRAIN, VALIDATION, TEST = 0, 1, 2
ROLE_NAMES = ("train", "validation", "test")

Indices = NDArray[np.int64]


def assign(labels: Indices, groups: Indices | None, validation: float, test: float, seed: int) -> NDArray[np.int8]:
    """The role of each row, int8 [rows]: TRAIN, VALIDATION or TEST.

    ``labels`` [rows] are classes from 0 (all zero where nothing is to be stratified), ``groups`` [rows] dense group
    numbers from 0. ``validation`` and ``test`` are fractions of all rows, and train takes the rest. Each role with a
    fraction above 0 gets a row of every class that has rows (with groups: of some class, and train one of every
    class), or ``InvalidRequest`` is raised.
    """
    fractions = np.array([1.0 - validation - test, validation, test])
    wanted = np.flatnonzero(fractions > 0)
    if len(labels) < len(wanted):
        raise InvalidRequest(f"{len(labels)} rows cannot fill {_listed(wanted)}: give more rows or drop a role")
    if groups is None:
        return _by_class(labels, fractions, seed)
    roles_of_groups = _by_group(labels, groups, fractions, seed)
    roles = roles_of_groups[groups]
    _require_every_class_in_train(labels, roles)
    return roles


def _by_class(labels: Indices, fractions: NDArray[np.float64], seed: int) -> NDArray[np.int8]:
    sizes = np.bincount(labels)
    roles_wanted = np.flatnonzero(fractions > 0)
    small = np.flatnonzero((sizes > 0) & (sizes < len(roles_wanted)))
    if len(small):
        raise InvalidRequest(
            f"class {small[0]} has too few rows ({sizes[small[0]]}) for a row in each of "
            f"{_listed(roles_wanted)}: {len(small)} such classes; add rows, merge classes or drop a role"
        )
    counts = _largest_remainder(sizes, fractions)
    return _deal(labels, _at_least_one(counts, roles_wanted), _keys(seed, len(labels)))


def _by_group(labels: Indices, groups: Indices, fractions: NDArray[np.float64], seed: int) -> NDArray[np.int8]:
    num_groups = int(groups.max()) + 1
    roles_wanted = np.flatnonzero(fractions > 0)
    if num_groups < len(roles_wanted):
        raise InvalidRequest(
            f"{num_groups} groups cannot fill {_listed(roles_wanted)} without splitting one: give more groups or drop a role"
        )
    sizes = np.bincount(groups)
    kinds = np.unique(_majority(labels, groups) * (len(labels) + 1) + sizes, return_inverse=True)[1]
    shares = np.floor(np.bincount(kinds)[:, None] * fractions + 1e-9).astype(np.int64)
    keys = _keys(seed, num_groups)
    roles = _deal(kinds, shares, keys)
    left = np.flatnonzero(roles < 0)
    left = left[np.lexsort((keys[left], -sizes[left]))]
    _place_greedily(roles, left, labels, groups, fractions)
    _fill_empty_roles(roles, sizes, roles_wanted)
    return roles


def _keys(seed: int, count: int) -> NDArray[np.uint64]:
    """64-bit keys of two words each, low word first, as the row order has them."""
    low, high = philox.words(seed, philox.STREAM_PARTITION, 2 * count).reshape(-1, 2).T.astype(np.uint64)
    keys: NDArray[np.uint64] = low | (high << np.uint64(32))
    return keys


def _largest_remainder(sizes: Indices, fractions: NDArray[np.float64]) -> Indices:
    """How many of ``sizes`` [strata] go to each role: int64 [strata, roles]; rows sum to ``sizes``."""
    quotas = sizes[:, None] * fractions
    counts = np.floor(quotas + 1e-9).astype(np.int64)
    # Rounded, so that remainders equal but for rounding errors tie; ties go to the earlier role.
    order = np.argsort(-np.round(quotas - counts, 6), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    counts += rank < (sizes - counts.sum(axis=1))[:, None]
    return counts


def _at_least_one(counts: Indices, roles_wanted: Indices) -> Indices:
    """Moves one from the largest role of a stratum to each wanted role that has none. Empty strata stay empty."""
    counts = counts.copy()
    strata = np.arange(len(counts))
    filled = counts.sum(axis=1) > 0
    for role in roles_wanted:
        needy = filled & (counts[:, role] == 0)
        donors = counts.argmax(axis=1)
        counts[strata[needy], donors[needy]] -= 1
        counts[needy, role] += 1
    return counts


def _deal(strata: Indices, counts: Indices, keys: NDArray[np.uint64]) -> NDArray[np.int8]:
    """Roles of the items: of each stratum the first, by key, go to test, then validation, then train; others are -1."""
    order = np.lexsort((keys, strata))
    ordered = strata[order]
    starts = np.searchsorted(ordered, np.arange(len(counts)))
    place = np.arange(len(ordered)) - starts[ordered]
    bounds = np.cumsum(counts[:, [TEST, VALIDATION, TRAIN]], axis=1)[ordered]
    dealt = np.full(len(ordered), -1, dtype=np.int8)
    for column, role in ((2, TRAIN), (1, VALIDATION), (0, TEST)):
        dealt[place < bounds[:, column]] = role
    roles = np.empty_like(dealt)
    roles[order] = dealt
    return roles


def _majority(labels: Indices, groups: Indices) -> Indices:
    """The most frequent class of each group [groups]; the lowest where several are."""
    order = np.lexsort((labels, groups))
    pairs = np.stack([groups[order], labels[order]])
    first = np.flatnonzero(np.append(True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)))
    runs = np.diff(np.append(first, len(labels)))
    best = np.lexsort((-runs, pairs[0, first]))
    _, leaders = np.unique(pairs[0, first][best], return_index=True)
    majority: Indices = pairs[1, first][best][leaders]
    return majority


def _place_greedily(
    roles: NDArray[np.int8], left: Indices, labels: Indices, groups: Indices, fractions: NDArray[np.float64]
) -> None:
    """Gives each left group, in order, to the role that lacks most, by class, of what the group holds."""
    class_sizes = np.bincount(labels)
    wanted = fractions[:, None] * class_sizes
    row_roles = roles[groups]
    held = [np.bincount(labels[row_roles == role], minlength=len(class_sizes)) for role in range(len(fractions))]
    lack = (wanted - np.stack(held)) / np.maximum(class_sizes, 1)
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(np.bincount(groups))
    allowed = np.where(fractions > 0, 0.0, -np.inf)
    for group in left:
        start = ends[group - 1] if group else 0
        members = labels[order[start : ends[group]]]
        role = int(np.argmax(lack[:, members].sum(axis=1) + allowed))
        np.subtract.at(lack[role], members, 1.0 / class_sizes[members])
        roles[group] = role


def _fill_empty_roles(roles: NDArray[np.int8], sizes: Indices, roles_wanted: Indices) -> None:
    """Each wanted role without a group takes the smallest group of the role with the most groups."""
    for role in roles_wanted:
        held = np.bincount(roles, minlength=len(ROLE_NAMES))
        if held[role] == 0:
            candidates = np.flatnonzero(roles == held.argmax())
            roles[candidates[sizes[candidates].argmin()]] = role


def _require_every_class_in_train(labels: Indices, roles: NDArray[np.int8]) -> None:
    missing = np.setdiff1d(labels, labels[roles == TRAIN])
    if len(missing):
        raise InvalidRequest(
            f"no training row is left of class {missing[0]}, for its groups went to other roles: "
            "give smaller fractions, another seed, or more groups with that class"
        )


def _listed(roles: Sequence[int] | Indices) -> str:
    names = [ROLE_NAMES[role] for role in roles]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
