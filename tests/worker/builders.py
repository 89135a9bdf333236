"""What the tests of the worker build again and again: specs, data, programs, engines, gangs in threads."""

import dataclasses
import functools
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from numpy.typing import NDArray

from phalanx_proto import reduction
from phalanx_proto.artifacts import Artifact, Signature
from phalanx_proto.experiment import Activation, Dense, DType, Loss, ModelSpec, OptimizerSpec, ProgramSpec, Sizes
from phalanx_proto.programs import export_program, shapes_of
from phalanx_proto.schedule import Schedule
from phalanx_worker import engine, lowering
from phalanx_worker.admission import gradient_signature
from phalanx_worker.arena import Arena
from phalanx_worker.engine import FitEngine
from phalanx_worker.fit import CanonicalFit
from phalanx_worker.gang import Follower, Leader, Work
from phalanx_worker.mailbox import FitShape
from phalanx_worker.state import ArrayType

Span = tuple[int, int]
Vector = NDArray[np.float64]
Nodes = dict[Span, Vector]
USER = os.getuid()
SGD = OptimizerSpec(name="sgd", rate=0.1)
ADAM = OptimizerSpec(name="adam", rate=0.01)


def make_spec(
    dtype: DType = "float64", *, inputs: int = 5, hidden: int = 4, outputs: int = 3, block: int = 4, score_block: int = 8,
    loss: Loss = "cross_entropy", optimizer: OptimizerSpec = ADAM,
) -> ProgramSpec:  # fmt: skip
    layers: tuple[Dense | Activation, ...] = (
        Dense(inputs=inputs, outputs=hidden), "tanh", Dense(inputs=hidden, outputs=outputs),
    )  # fmt: skip
    return ProgramSpec(
        model=ModelSpec(layers=layers), loss=loss, float_targets=False, optimizer=optimizer, dtype=dtype, block=block,
        score_block=score_block,
    )  # fmt: skip


def make_schedule(spec: ProgramSpec, *, rows: int = 50, batch: int = 32, epochs: int = 2, seed: int = 7) -> Schedule:
    return Schedule(rows=rows, batch=batch, block=spec.block, epochs=epochs, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model, data and initial parameters."""

    spec: ProgramSpec
    schedule: Schedule
    x: NDArray[Any]
    y: NDArray[np.int32]
    initial: NDArray[Any]

    @property
    def sizes(self) -> Sizes:
        return self.spec.sizes


def make_problem(
    spec: ProgramSpec | None = None, *, rows: int = 50, batch: int = 32, epochs: int = 2, seed: int = 7
) -> Problem:
    spec = spec or make_spec()
    random = np.random.default_rng(seed)
    return Problem(
        spec=spec,
        schedule=make_schedule(spec, rows=rows, batch=batch, epochs=epochs, seed=seed),
        x=random.normal(size=(rows, spec.model.inputs)).astype(spec.dtype),
        y=random.integers(0, spec.model.outputs, rows).astype(np.int32),
        initial=(0.5 * random.normal(size=spec.model.parameters)).astype(spec.dtype),
    )


@functools.cache
def programs_of(spec: ProgramSpec) -> dict[str, Artifact]:
    """The lowered programs of a Dense model."""
    return lowering.lower(spec, ("cpu",))


def artifacts_of(spec: ProgramSpec) -> dict[str, bytes]:
    return {name: artifact.data for name, artifact in programs_of(spec).items()}


def gradient_program(problem: Problem, function: Callable[..., Any]) -> bytes:
    """A gradient program of the problem's shapes that computes ``function``."""
    return export_program("gradient", function, shapes_of(signature_for(problem)), ("cpu",)).data


def update_program(sizes: Sizes, function: Callable[..., Any]) -> bytes:
    """An update program without state: ``function(parameters, mean gradient, number)``."""
    array: Any = jax.ShapeDtypeStruct
    vector = array((sizes.parameters,), sizes.dtype)
    return export_program("update", function, [vector, vector, array((), "int32")], ("cpu",)).data


def signature_for(problem: Problem) -> Signature:
    return gradient_signature(
        problem.sizes,
        ArrayType(dtype=problem.x.dtype.name, shape=problem.x.shape),
        ArrayType(dtype=problem.y.dtype.name, shape=problem.y.shape),
    )


def endless_gradient(parameters: Any, x: Any, y: Any, weight: Any, key: Any) -> Any:
    """Never ends, and no compiler can know."""
    spun = jax.lax.while_loop(lambda value: value < 2, lambda value: value * 0.5, jnp.sum(weight) * 0)
    return parameters + spun, spun, jnp.sum(weight), spun[None]


def huge_gradient(parameters: Any, x: Any, y: Any, weight: Any, key: Any) -> Any:
    """Names a tensor of 64 GiB of Float64."""
    total = jnp.sum(jnp.broadcast_to(jnp.sum(weight), (1 << 33,)) * parameters[0])
    return parameters * total, total, jnp.sum(weight), total[None]


def forged_program(problem: Problem) -> bytes:
    """A gradient program whose module calls a function of the host under a name that its envelope does not own up to."""
    target = "phalanx_forged_call"

    def gradient(parameters: Any, x: Any, y: Any, weight: Any, key: Any) -> Any:
        called = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(parameters.shape, parameters.dtype))(parameters)
        return called, jnp.sum(weight), jnp.sum(weight), jnp.sum(weight)[None]

    check = export.DisabledSafetyCheck.custom_call(target)
    exported = export.export(jax.jit(gradient), platforms=("cpu",), disabled_checks=[check])
    honest = exported(*shapes_of(signature_for(problem)))
    return bytes(dataclasses.replace(honest, disabled_safety_checks=()).serialize())


def cpu() -> Any:
    engine.configure()
    return engine.find_device("cpu")


@functools.cache
def dense_engine(spec: ProgramSpec, capacity: int, slot: int) -> FitEngine:
    """Compiled once: binding other data to it costs nothing."""
    return FitEngine(spec.sizes, artifacts_of(spec), cpu(), capacity)


def bound_engine(problem: Problem, slot: int = 0) -> FitEngine:
    """An engine in this process with the problem's programs and data; one for each slot."""
    found = dense_engine(problem.spec, problem.schedule.capacity, slot)
    found.bind(problem.x, problem.y, problem.schedule.seed)
    return found


def engine_of(problem: Problem, **programs: bytes) -> FitEngine:
    """An engine in this process with other programs and the problem's data."""
    found = FitEngine(problem.sizes, programs, cpu(), problem.schedule.capacity)
    found.bind(problem.x, problem.y, problem.schedule.seed)
    return found


def ids_of(schedule: Schedule, epoch: int = 0) -> NDArray[np.int32]:
    """The flat row buffer of an epoch."""
    ids = np.zeros((schedule.updates_per_epoch, schedule.capacity * schedule.block), np.int32)
    schedule.fill_epoch(ids, epoch)
    return ids.reshape(-1)


def nodes_of(
    own: FitEngine, schedule: Schedule, parameters: NDArray[Any], ids: NDArray[np.int32], lo: int, hi: int, update: int = 0
) -> Nodes:  # fmt: skip
    """Copies of the maximal nodes of [lo, hi) of an update of the first epoch."""
    n, base = schedule.blocks_of(update), update * schedule.capacity * schedule.block
    work = Work(update=update, lo=lo, hi=hi, blocks=n, rows=schedule.rows_of(update), offset=base + lo * schedule.block)
    plan = np.zeros(engine.plan_words(schedule.capacity), np.int32)
    work.write(plan, schedule.block)
    stack, _ = own.nodes(parameters, ids, plan)
    return {span: np.array(stack[i]) for i, span in enumerate(reduction.maximal_nodes(lo, hi, n))}


@contextmanager
def gang(problem: Problem, slots: int, *, held: int | None = None, remote: int = 0, timeout: float = 30.0) -> Iterator[Leader]:
    """A leader in this thread and followers in threads, each with an engine of its own."""
    held = problem.schedule.updates_per_epoch if held is None else held
    shape = FitShape(sizes=problem.sizes, schedule=problem.schedule, slots=slots, held=held, remote=remote)
    arena = Arena.create(shape.layout())
    leader = Leader(engine=bound_engine(problem, 0), arena=arena, shape=shape, alive=lambda: None, timeout=timeout)
    followers = [Follower(bound_engine(problem, slot), arena, shape, slot) for slot in range(1, slots)]
    threads = [threading.Thread(target=follower.serve, args=(lambda: None,)) for follower in followers]
    for thread in threads:
        thread.start()
    try:
        yield leader
    finally:
        leader.release()
        for thread in threads:
            thread.join(timeout=30.0)
        arena.close()
        assert not any(thread.is_alive() for thread in threads)


def canonical(
    leader: Leader, problem: Problem, weights: Sequence[float], *, validation: Any = None, keep_best: bool = False
) -> CanonicalFit:
    state = [shape[0] for shape in lowering.state_shapes(problem.spec)]
    return CanonicalFit(
        leader=leader, initial=problem.initial, state_sizes=state, weights=weights, validation=validation,
        keep_best=keep_best,
    )  # fmt: skip


@contextmanager
def compilations() -> Iterator[list[str]]:
    """What XLA compiles meanwhile, by name."""
    found: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        match = re.search(r"Finished XLA compilation of (\S+)", record.getMessage())
        found.extend(match.groups() if match else ())
        return False

    logger = logging.getLogger("jax._src.dispatch")
    logger.addFilter(note)
    try:
        with jax.log_compiles():
            yield found
    finally:
        logger.removeFilter(note)


def reference_loss(problem: Problem, parameters: Any, x: Any, y: Any) -> Any:
    """Mean cross-entropy of the whole batch, written a second time and without blocks."""
    start = 0
    for number, layer in enumerate(problem.spec.model.dense):
        middle = start + layer.inputs * layer.outputs
        weights = parameters[start:middle].reshape(layer.inputs, layer.outputs)
        x = (jnp.tanh(x) if number else x) @ weights + parameters[middle : middle + layer.outputs]
        start = middle + layer.outputs
    return jnp.mean(jax.nn.logsumexp(x, axis=1) - x[jnp.arange(len(y)), y])
