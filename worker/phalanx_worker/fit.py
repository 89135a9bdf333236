"""The canonical side of a fit, which commits its updates; ``member_fit`` is the other side, which only adds up nodes.

``CanonicalFit`` lives in the coordinator's first engine. ``stretch`` runs updates on its own slots with no round trip each;
``part`` and ``commit`` are the same two steps taken apart, for a group with members on other machines. Both go through
the same executables, so both end in the same bits. ``save`` and ``restore`` carry it from one life of a run to the next.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import blocks, reduction, tensors
from phalanx_proto.errors import InvalidRequest, LedgerMismatch
from phalanx_worker.arena import Arena
from phalanx_worker.gang import Leader, Nodes, Range

NO_RANGE: Range = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Canary:
    """What one slot made of block 0 of update 0 at the initial parameters."""

    digest: str
    deviation: float
    """Largest difference to slot 0's node, relative to the largest magnitude in it."""


def canaries(leader: Leader, parameters: Any, held: int, buffer: int) -> list[Canary]:
    """One canary a slot; the rows of update 0 are in place and the parameters published."""
    found: list[Canary] = []
    reference: NDArray[np.float64] | None = None
    for slot in range(leader.shape.slots):
        ranges = [NO_RANGE] * leader.shape.slots
        ranges[slot] = (0, 1)
        (node,) = leader.nodes(parameters, 0, ranges, held, buffer).values()
        node = np.array(node)
        reference = node if reference is None else reference
        scale = float(np.abs(reference).max()) or 1.0
        found.append(Canary(digest=tensors.digest(node), deviation=float(np.abs(node - reference).max()) / scale))
    leader.reset_tallies()
    return found


@dataclass(kw_only=True)
class EpochSums:
    """Running sums of the epoch under way, Float64 [2 + M]: loss, weight, metrics."""

    values: NDArray[np.float64]

    def record(self, epoch: int, validation: NDArray[np.float64] | None) -> dict[str, Any]:
        """The epoch's line of the history, as JSON values; sums, not means."""
        line: dict[str, Any] = {"epoch": epoch, "train": self.values.tolist()}
        line["validation"] = None if validation is None else validation.tolist()
        return line


@dataclass(kw_only=True)
class CanonicalFit:
    """The one place where parameters change."""

    leader: Leader
    initial: NDArray[Any]
    """Parameters [P] in the group dtype."""
    state_sizes: Sequence[int]
    weights: Sequence[float]
    """Shares of this machine's slots when it computes alone; 0 for a slot that only commits."""
    validation: tuple[NDArray[Any], NDArray[Any], int] | None = None
    """x, y padded to whole score blocks, and the number of real rows."""
    keep_best: bool = False
    update: int = 0
    best: tuple[float, int] | None = None
    """Lowest validation loss so far and its epoch."""
    validation_ns: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        engine, shape = self.leader.engine, self.leader.shape
        self._sizes, self._schedule, self._engine = shape.sizes, shape.schedule, engine
        self._parameters: Any = engine.put(self.initial)
        self._state = [engine.put(np.zeros(size, shape.sizes.dtype)) for size in self.state_sizes]
        self._sums = EpochSums(values=np.zeros(2 + shape.sizes.metrics))
        self._held_epoch = [-1, -1]
        self._ids = [self.leader.arena["ids0"], self.leader.arena["ids1"]]
        self._root = self.leader.arena["root"]
        area = self.leader.arena["remote"]
        self._remote, self._remote_stack = list(area), area[: len(self._root)]
        self._own: Nodes = {}
        self._best_parameters: Any = None
        if self.validation is not None:
            x, y, rows = self.validation
            self.validation = (engine.put(x), engine.put(y), rows)
        self.leader.publish(self._parameters, self.update)

    @property
    def parameters(self) -> NDArray[Any]:
        """The committed parameters [P]: the best epoch's where those are kept, else the last."""
        kept = self._best_parameters if self._best_parameters is not None else self._parameters
        return np.asarray(kept)

    def canaries(self) -> list[Canary]:
        """Every slot's canary, by the program and data it will use; slot 0's is the canonical one.

        Compiles all that an update and a validation need, so that updates are measured warm. Changes nothing.
        """
        held, buffer = self._fill(0)
        found = canaries(self.leader, self._parameters, held, buffer)
        self._engine.commit(self._parameters, self._root, 0, self._state)
        if self.validation is not None:
            x, y, _ = self.validation
            self._engine.score(self._parameters, x, y, 1)
        return found

    def canary_node(self, out: NDArray[np.float64]) -> None:
        """Write the canonical node of block 0 of update 0 into ``out`` [N], for members that computed other bits."""
        held, buffer = self._fill(0)
        ranges = [(0, 1), *[NO_RANGE] * (self.leader.shape.slots - 1)]
        (node,) = self.leader.nodes(self._parameters, 0, ranges, held, buffer).values()
        np.copyto(out, node)
        self.leader.reset_tallies()

    def save(self, out: Arena | Mapping[str, NDArray[Any]]) -> None:
        """Write all that the next update depends on into ``out``, whose arrays are those of ``FitOpening.saved``.

        ``best`` is left as it is where no epoch was kept yet.
        """
        np.copyto(out["parameters"], np.asarray(self._parameters))
        for number, values in enumerate(self._state):
            np.copyto(out[f"state-{number}"], np.asarray(values))
        np.copyto(out["sums"], self._sums.values)
        if self._best_parameters is not None:
            np.copyto(out["best"], np.asarray(self._best_parameters))

    def restore(self, saved: Arena | Mapping[str, NDArray[Any]], update: int, best: tuple[float, int] | None) -> None:
        """Go on at ``update`` from what ``save`` wrote; ``best`` is the best epoch's loss and number. Keeps no view."""
        if not 0 <= update <= self._schedule.updates:
            raise InvalidRequest(f"a fit of {self._schedule.updates} updates cannot go on at update {update}")
        put, dtype = self._engine.put, self._sizes.dtype
        self._parameters = put(np.array(saved["parameters"], dtype))
        self._state = [put(np.array(saved[f"state-{number}"], dtype)) for number in range(len(self._state))]
        self._sums.values[:] = saved["sums"]
        self.best = best
        self._best_parameters = None if best is None else put(np.array(saved["best"], dtype))
        self.update = update
        self.leader.publish(self._parameters, update)

    def stretch(self, until: int, seconds: float) -> dict[str, Any]:
        """Commit updates up to ``until``, or for about ``seconds``; stops before a non-finite one."""
        epochs: list[dict[str, Any]] = []
        deadline = time.monotonic() + seconds
        stopped = None
        while self.update < until and stopped is None:
            ranges = slot_ranges(self._schedule.blocks_of(self.update), self.weights, self.update)
            if len(ranges) > 1:
                self.leader.publish(self._parameters, self.update)
            stopped = self._commit(self._nodes(ranges), epochs)
            if time.monotonic() > deadline:
                break
        return {"update": self.update, "epochs": epochs, "stopped": stopped}

    def part(self, ranges: Sequence[Range]) -> None:
        """Compute this machine's own part of the next update, or more of it, which a lost member owed."""
        if any(lo < hi for lo, hi in ranges):
            before = {span: np.array(values) for span, values in self._own.items()}  # views that are written to now
            self._own = before | self._nodes(ranges)

    def commit(self, remote: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
        """Fold the own part and the nodes (lo, hi, index) that lie in the arena's ``remote``, and commit the update."""
        nodes = {**self._own, **{(lo, hi): self._remote[index] for lo, hi, index in remote}}
        if not self._own:
            self.leader.own_spans = set()  # what the stack holds is an earlier update's
        self._own = {}
        epochs: list[dict[str, Any]] = []
        stopped = self._commit(nodes, epochs)
        if stopped is None:
            self.leader.publish(self._parameters, self.update)
        return {"update": self.update, "epochs": epochs, "stopped": stopped}

    def _fill(self, update: int) -> tuple[int, int]:
        epoch, held = self._schedule.epoch_of(update)
        buffer = epoch & 1
        if self._held_epoch[buffer] != epoch:
            self._schedule.fill_epoch(self._ids[buffer], epoch)
            self._held_epoch[buffer] = epoch
        return held, buffer

    def _nodes(self, ranges: Sequence[Range]) -> Nodes:
        held, buffer = self._fill(self.update)
        return self.leader.nodes(self._parameters, self.update, ranges, held, buffer)

    def _folded(self, nodes: Nodes) -> Any:
        n = self._schedule.blocks_of(self.update)
        if nodes.keys() == {(0, n)} == self.leader.own_spans:
            return self._engine.stack
        root = self._root[0]
        found = reduction.combine(nodes, 0, n, out=root)
        if found is self._remote[0]:  # it lies where a stack begins already
            return self._remote_stack
        if found is not root:
            np.copyto(root, found)
        return self._root

    def _commit(self, nodes: Nodes, epochs: list[dict[str, Any]]) -> str | None:
        stack = self._folded(nodes)
        epoch, index = self._schedule.epoch_of(self.update)
        info, parameters, state = self._engine.commit(self._parameters, stack, self.update, self._state)
        if not info[0]:
            return "not finite"
        rows = self._schedule.rows_of(self.update)
        if info[2] != rows:
            raise LedgerMismatch(f"update {self.update}: the weights add up to {info[2]}, the plan has {rows} rows")
        self._parameters, self._state = parameters, state
        self._sums.values += info[1:]
        self.update += 1
        if index + 1 == self._schedule.updates_per_epoch:
            epochs.append(self._end_epoch(epoch))
        return None

    def _end_epoch(self, epoch: int) -> dict[str, Any]:
        validation = None
        if self.validation is not None:
            started = time.perf_counter_ns()
            validation = self._engine.score(self._parameters, *self.validation)
            self.validation_ns += time.perf_counter_ns() - started
            loss = float(validation[0] / validation[1])
            if self.keep_best and (self.best is None or loss < self.best[0]):
                self.best, self._best_parameters = (loss, epoch), self._parameters
        line = self._sums.record(epoch, validation)
        self._sums.values[:] = 0
        return line

    def diagnose(self) -> tuple[int, list[int]] | None:
        """The first block of the next update whose node is not finite, and its rows; None if the update itself is."""
        held, buffer = self._fill(self.update)
        n, block = self._schedule.blocks_of(self.update), self._sizes.block
        for k in range(n):
            ranges = [(k, k)] * self.leader.shape.slots
            ranges[first_computing(self.weights)] = (k, k + 1)
            self.leader.publish(self._parameters, self.update)
            (node,) = self.leader.nodes(self._parameters, self.update, ranges, held, buffer).values()
            if not np.isfinite(node).all():
                rows = blocks.rows_in(k, k + 1, block, self._schedule.rows_of(self.update))
                return k, self._ids[buffer][held, k * block : k * block + rows].tolist()
        return None


def slot_ranges(n: int, weights: Sequence[float], turn: int) -> list[Range]:
    """One range a slot; a slot of weight 0 gets none."""
    shares = iter(blocks.share_blocks(n, [weight for weight in weights if weight > 0], turn))
    return [next(shares) if weight > 0 else NO_RANGE for weight in weights]


def first_computing(weights: Sequence[float]) -> int:
    """The first slot with a share; the leader where nobody has one."""
    return next((slot for slot, weight in enumerate(weights) if weight > 0), 0)
