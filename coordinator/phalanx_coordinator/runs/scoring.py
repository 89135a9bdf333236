"""Lowering, evaluation and prediction on the canonical engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator.runs import data
from phalanx_proto.errors import LedgerMismatch
from phalanx_proto.experiment import ProgramSpec, Rows
from phalanx_proto.jobs import FittedParts, Score
from phalanx_worker.pool import Arena, Pool, data_arena

DEADLINE = 600.0
"""Seconds for one lowering, evaluation or prediction."""


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """The programs of a fit."""

    artifacts: Mapping[str, bytes]
    digests: Mapping[str, str]
    state: Sequence[int]
    """Lengths of the optimizer's state arrays."""


async def lower(pool: Pool, spec: ProgramSpec) -> Lowered:
    """Let the canonical engine lower a spec into its programs."""
    answer = await pool.call({"op": "lower", "spec": spec.to_json()}, deadline=DEADLINE)
    artifacts, start = {}, 0
    for name, length in answer.body["index"]:
        artifacts[name] = answer.payload[start : start + length]
        start += length
    return Lowered(artifacts=artifacts, digests=answer.body["digests"], state=answer.body["state"])


def _call(op: str, fitted: FittedParts, arena: Arena, rows: int) -> tuple[dict[str, Any], bytes]:
    body = {
        "op": op,
        "sizes": fitted.spec.sizes.to_document(),
        "index": [(name, len(program)) for name, program in fitted.programs.items()],
        "arena": arena.describe(),
        "rows": rows,
    }
    return body, b"".join(fitted.programs.values())


async def score_rows(pool: Pool, fitted: FittedParts, rows: Rows) -> Score:
    """Mean loss and accuracy over the rows, each counted once."""
    dtype, block = fitted.spec.dtype, fitted.spec.score_block
    arena = data_arena(
        {
            "parameters": fitted.parameters,
            "x": data.pad_rows(data.features(rows, fitted.scaling, dtype), block),
            "y": data.pad_rows(data.targets(rows, dtype), block),
        }
    )
    try:
        body, payload = _call("score", fitted, arena, len(rows))
        sums = (await pool.call(body, payload, [arena], deadline=DEADLINE)).body["sums"]
    finally:
        arena.close()
    if sums[1] != len(rows):
        raise LedgerMismatch(f"{len(rows)} {rows.role} rows were to be evaluated, {sums[1]:g} were counted")
    return score_of(sums, fitted.spec)


def score_of(sums: Sequence[float], spec: ProgramSpec) -> Score:
    """Means from the sums of loss, weight and metrics."""
    loss, weight = sums[0], sums[1]
    accuracy = sums[2] / weight if spec.metrics else None
    return Score(loss=loss / weight, rows=round(weight), accuracy=accuracy)


async def predict_rows(pool: Pool, fitted: FittedParts, x: NDArray[np.float64]) -> NDArray[Any]:
    """Outputs [rows, O] in the group dtype."""
    scaled = x if fitted.scaling is None else fitted.scaling.apply(x)
    features = np.ascontiguousarray(scaled, np.dtype(fitted.spec.dtype))
    outputs = np.zeros((len(x), fitted.spec.model.outputs), fitted.spec.dtype)
    arena = data_arena({"parameters": fitted.parameters, "x": features, "out": outputs})
    try:
        body, payload = _call("predict", fitted, arena, len(x))
        await pool.call(body, payload, [arena], deadline=DEADLINE)
        return np.array(arena["out"])
    finally:
        arena.close()


async def parameters_of(pool: Pool, spec: ProgramSpec) -> NDArray[Any]:
    """The parameters [P] of the open fit: the best epoch's where those are kept, else the last."""
    out = Arena.create({"out": ((spec.model.parameters,), spec.dtype)})
    try:
        await pool.call({"op": "parameters", "arena": out.describe()}, arenas=[out], deadline=DEADLINE)
        return np.array(out["out"])
    finally:
        out.close()
