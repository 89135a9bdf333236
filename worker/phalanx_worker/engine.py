"""The engine: runs the programs of a fit through JAX on one device.

Every block of a batch goes through one executable whatever the range, so a block's bits depend on the block alone; the
partial sums inside a range are added in the order of the reduction tree (``phalanx_proto.reduction``), in Float64.
Callers pass NumPy arrays and get NumPy arrays; 64-byte aligned ones pass without a copy on CPU.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import SingleDeviceSharding
from numpy.typing import NDArray

from phalanx_proto import programs, reduction
from phalanx_proto.errors import InvalidRequest, Unavailable
from phalanx_proto.experiment import Sizes

PLAN_HEADER = 8
"""Int32 words before the merge schedule in a plan: id offset, real rows, blocks, update, first block, then spare."""

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Times:
    """Nanoseconds of one piece of work."""

    prepare: int
    compute: int
    readback: int


def configure() -> None:
    """Set the process-wide JAX options that the numbers depend on. Call before anything is compiled."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_default_matmul_precision", "highest")


def find_device(backend: str, ordinal: int = 0) -> Any:
    """The device asked for, or Unavailable: nothing falls back."""
    try:
        devices = jax.devices(backend)
    except RuntimeError as error:
        raise Unavailable(f"backend {backend!r} is not available: {error}", backend=backend) from error
    if ordinal >= len(devices):
        raise Unavailable(f"backend {backend!r} has {len(devices)} device(s); ordinal {ordinal} was asked for")
    return devices[ordinal]


def plan_words(blocks: int) -> int:
    """Int32 words of a plan for batches of at most ``blocks`` blocks."""
    return PLAN_HEADER + blocks


@functools.lru_cache(maxsize=4096)
def merges_of(lo: int, hi: int, n: int) -> Array:
    """The merge schedule of the range, cached: plans repeat from update to update."""
    return np.asarray(reduction.merge_schedule(lo, hi, n), np.int32)


def _block_inputs(sizes: Sizes, x: Any, y: Any, ids: Any, plan: Any, seed: Any, k: Any) -> tuple[Any, ...]:
    rows = lax.dynamic_slice(ids, (plan[0] + k * sizes.block,), (sizes.block,))
    inside = (k * sizes.block + jnp.arange(sizes.block, dtype=jnp.int32)) < plan[1]
    key = jnp.concatenate([seed, jnp.stack([plan[3], plan[4] + k]).astype(jnp.uint32)])
    return x[rows], y[rows], inside.astype(sizes.dtype), key


def _add_leaf(stack: Any, slope: Any, tail: Any, top: Any, merges: Any) -> Any:
    """The stack [depth, N] after a leaf (slope [P], tail [N - P]) came on top of ``top`` nodes and was merged ``merges`` times.

    Loops of no or one turn stand for branches: XLA works in place in a loop, but copies the stack in a conditional. Slope
    and tail are widened where they are added, never joined or written as Float64 on their own.
    """
    zero, one, once = jnp.int32(0), jnp.int32(1), jnp.minimum(merges, jnp.int32(1))
    parts = ((slope, zero), (tail, jnp.int32(slope.shape[0])))

    def put(_: Any, values: Any) -> Any:
        for part, at in parts:
            values = lax.dynamic_update_slice(values, part.astype(jnp.float64)[None], (top, at))
        return values

    def add(_: Any, values: Any) -> Any:
        for part, at in parts:
            left = lax.dynamic_slice(values, (top - one, at), (1, part.shape[0]))
            values = lax.dynamic_update_slice(values, left + part.astype(jnp.float64)[None], (top - one, at))
        return values

    def merge(j: Any, values: Any) -> Any:
        left = top - one - j
        pair = (lax.dynamic_index_in_dim(values, row, 0) for row in (left, left + one))
        return lax.dynamic_update_slice(values, next(pair) + next(pair), (left, zero))

    stack = lax.fori_loop(once, one, put, stack)
    stack = lax.fori_loop(zero, once, add, stack)
    return lax.fori_loop(one, merges, merge, stack)


def _compiled(function: Callable[..., Any], device: Any, **options: Any) -> Callable[..., Any]:
    """One executable on the device, whether an argument comes as a NumPy array or lies there already."""
    return jax.jit(function, in_shardings=SingleDeviceSharding(device), **options)


def tree_executable(sizes: Sizes, gradient: Callable[..., Any], device: Any) -> Callable[..., Any]:
    """(parameters, stack, x, y, ids, plan, seed) -> stack whose first rows are the maximal nodes of the range."""

    def nodes(parameters: Any, stack: Any, x: Any, y: Any, ids: Any, plan: Any, seed: Any) -> Any:
        def block(k: Any, carry: Any) -> Any:
            stack, top = carry
            slope, loss, weight, metrics = gradient(parameters, *_block_inputs(sizes, x, y, ids, plan, seed, k))
            merges = plan[PLAN_HEADER + k]
            tail = jnp.concatenate([loss[None], weight[None], metrics])
            return _add_leaf(stack, slope, tail, top, merges), top + 1 - merges

        return lax.fori_loop(0, plan[2], block, (stack, jnp.int32(0)))[0]

    return _compiled(nodes, device, donate_argnums=1)


def leaf_executable(sizes: Sizes, gradient: Callable[..., Any], device: Any) -> Callable[..., Any]:
    """One block's outputs in the group dtype, for a device without Float64; the tree is then added on the host."""

    def leaf(parameters: Any, x: Any, y: Any, ids: Any, plan: Any, seed: Any, k: Any) -> Any:
        return gradient(parameters, *_block_inputs(sizes, x, y, ids, plan, seed, k))

    return _compiled(leaf, device)


def commit_executable(sizes: Sizes, update: Callable[..., Any], device: Any) -> Callable[..., Any]:
    """(parameters, stack, update number, *state) -> (info, parameters, *state); the root is the stack's first row.

    ``info`` is Float64 [3 + M]: 1.0 if the root and the new parameters are finite, loss, weight and metric sums.
    """
    size = sizes.parameters

    def commit(parameters: Any, stack: Any, number: Any, *state: Any) -> Any:
        root = stack[0]
        mean = (root[:size] / root[size + 1]).astype(sizes.dtype)
        parameters, *state = update(parameters, mean, number, *state)
        finite = jnp.isfinite(root).all() & jnp.isfinite(parameters).all()
        return jnp.concatenate([finite[None].astype(jnp.float64), root[size:]]), parameters, *state

    return _compiled(commit, device)


def score_executable(sizes: Sizes, score: Callable[..., Any], device: Any) -> Callable[..., Any]:
    """(parameters, x, y, rows) -> Float64 [2 + M] sums over the first ``rows`` rows, block after block."""
    size = sizes.score_block

    def total(parameters: Any, x: Any, y: Any, rows: Any) -> Any:
        def block(k: Any, sums: Any) -> Any:
            start = k * size
            part = lax.dynamic_slice_in_dim(x, start, size), lax.dynamic_slice_in_dim(y, start, size)
            inside = (start + jnp.arange(size, dtype=jnp.int32)) < rows
            loss, weight, metrics = score(parameters, *part, inside.astype(sizes.dtype))
            return sums + jnp.concatenate([loss[None], weight[None], metrics]).astype(jnp.float64)

        zero = jnp.zeros((2 + sizes.metrics,), jnp.float64)
        return lax.fori_loop(0, (rows + size - 1) // size, block, zero)

    return _compiled(total, device)


class FitEngine:
    """The programs of one fit bound to one device and one training array."""

    def __init__(self, sizes: Sizes, artifacts: Mapping[str, bytes], device: Any, blocks: int) -> None:
        self.sizes = sizes
        self.device = device
        self.blocks = blocks
        self.depth = reduction.stack_depth(blocks)
        calls = {name: programs.load(data).call for name, data in artifacts.items()}
        self.host_tree = device.platform not in ("cpu", "cuda", "gpu")
        make = leaf_executable if self.host_tree else tree_executable
        self._nodes = make(sizes, calls["gradient"], device) if "gradient" in calls else None
        self._commit = commit_executable(sizes, calls["update"], device) if "update" in calls else None
        self._score = score_executable(sizes, calls["score"], device) if "score" in calls else None
        self._predict = _compiled(calls["predict"], device) if "predict" in calls else None
        self.stack: Any = None
        """What the last call of ``nodes`` returned."""
        self._x: Any = None
        self._y: Any = None
        self._seed: Any = None

    def put(self, value: Array) -> Any:
        """The array on this engine's device; without a copy where it is aligned host memory."""
        return jax.device_put(value, self.device, may_alias=True)

    def bind(self, x: Array, y: Array, seed: int) -> None:
        """Bind the training rows [rows, F] and targets, and the seed of program keys."""
        self._x, self._y = self.put(x), self.put(y)
        self._seed = self.put(np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32))
        if not self.host_tree:
            self.stack = self._empty_stack()

    def _empty_stack(self) -> Any:
        with jax.default_device(self.device):
            return jnp.zeros((self.depth, self.sizes.node_size), jnp.float64)

    def nodes(self, parameters: Any, ids: Array, plan: Array) -> tuple[Any, Times]:
        """The stack [depth, N] whose first rows are the nodes of the planned range, on the device.

        The stack is this engine's own and is overwritten by the next call.
        """
        started = time.perf_counter_ns()
        if self._nodes is None or self._x is None:
            raise InvalidRequest("this engine has no gradient program or no data bound")
        if self.host_tree:
            return self._host_nodes(self._nodes, parameters, ids, plan)
        stack, self.stack = self.stack, None
        if stack is None:  # a call that failed took it along
            stack = self._empty_stack()
        self.stack = self._nodes(parameters, stack, self._x, self._y, ids, plan, self._seed)
        self.stack.block_until_ready()
        return self.stack, Times(prepare=0, compute=time.perf_counter_ns() - started, readback=0)

    def _host_nodes(self, leaf: Any, parameters: Any, ids: Array, plan: Array) -> tuple[Array, Times]:
        started, readback = time.perf_counter_ns(), 0
        pending: list[Array] = []
        parameters, ids, words = self.put(np.asarray(parameters)), self.put(ids), self.put(plan)
        for k in range(int(plan[2])):
            outputs = leaf(parameters, self._x, self._y, ids, words, self._seed, np.int32(k))
            jax.block_until_ready(outputs)
            before = time.perf_counter_ns()
            gradient, loss, weight, metrics = (np.asarray(o, np.float64) for o in outputs)
            node = np.concatenate([gradient, loss[None], weight[None], metrics])
            for _ in range(int(plan[PLAN_HEADER + k])):
                node = pending.pop() + node
            pending.append(node)
            readback += time.perf_counter_ns() - before
        stack = np.zeros((self.depth, self.sizes.node_size), np.float64)
        stack[: len(pending)] = pending
        total = time.perf_counter_ns() - started
        self.stack = stack
        return stack, Times(prepare=0, compute=total - readback, readback=readback)

    def commit(self, parameters: Any, stack: Any, number: int, state: Sequence[Any]) -> tuple[Array, Any, list[Any]]:
        """One update from the root in ``stack[0]``: (info, new parameters, new state). Nothing is changed in place."""
        if self._commit is None:
            raise InvalidRequest("this engine has no update program")
        info, parameters, *state = self._commit(parameters, stack, np.int32(number), *state)
        return np.asarray(info), parameters, list(state)

    def score(self, parameters: Any, x: Any, y: Any, rows: int) -> Array:
        """Float64 [2 + M]: loss, weight and metric sums over the first ``rows`` rows of padded x and y."""
        if self._score is None:
            raise InvalidRequest("this engine has no score program")
        return np.asarray(self._score(parameters, x, y, np.int32(rows)))

    def predict(self, parameters: Any, x: Array) -> Array:
        """Outputs [rows, O] in the group dtype, computed in blocks of ``score_block`` rows."""
        if self._predict is None:
            raise InvalidRequest("this engine has no predict program")
        size, outputs = self.sizes.score_block, np.empty((len(x), self.sizes.outputs), self.sizes.dtype)
        block = np.zeros((size, x.shape[1]), self.sizes.dtype)
        for start in range(0, len(x), size):
            part = x[start : start + size]
            block[: len(part)] = part
            outputs[start : start + len(part)] = np.asarray(self._predict(parameters, block)[0])[: len(part)]
        return outputs
