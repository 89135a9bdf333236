"""Everything that can be wrong with a request, found before anything starts and listed at once."""

from itertools import pairwise

import numpy as np

from phalanx_proto import tensors
from phalanx_proto.errors import InvalidExperiment, InvalidRequest, ProtectedRole
from phalanx_proto.experiment import OptimizerSpec, Rows
from phalanx_proto.jobs import FitRequest, FittedParts, SimulationRequest

MAX_SAMPLES = 10**12
MAX_SEED = 1 << 64
MAX_UPDATES = (1 << 31) - 1
"""Engines count updates in 32 bits."""
LARGEST_SCALED = 1e150
"""Features above it would overflow in the sums of their squares."""


def check_fit(request: FitRequest) -> None:
    """Raises ProtectedRole, or InvalidExperiment with every problem."""
    check_role(request.train, "train", "fitted on")
    if request.validation is not None:
        check_role(request.validation, "validation", "used for validation")
    if request.test is not None:
        check_role(request.test, "test", "used for the test after the fit")
    problems = [*_settings(request), *_model(request)]
    if request.model.dense:
        problems += _rows(request, request.train)
    for held_out in (request.validation, request.test):
        if held_out is not None:
            problems += _rows(request, held_out) if request.model.dense else []
            if held_out.source != request.train.source:
                problems.append(f"the {held_out.role} rows come from another dataset than the training rows; use one partition")
    if problems:
        raise InvalidExperiment(problems)


def check_role(rows: Rows, wanted: str, purpose: str) -> None:
    """Rows of another role are refused, whatever the client says; ``all`` has no protected part and may be fitted on.

    The fingerprint covers the role, so rows that were only relabelled are refused as well.
    """
    allowed = {wanted, "all"} if wanted == "train" else {wanted}
    if rows.role not in allowed:
        raise ProtectedRole(
            f"{rows.role} rows cannot be {purpose}; pass the partition's {wanted} rows", role=rows.role, wanted=wanted
        )
    if rows.fingerprint != tensors.fingerprint(rows.x, rows.y, tag=rows.role):
        raise ProtectedRole(
            f"these rows are not the {rows.role} rows that their fingerprint names, so they cannot be {purpose}; pass the "
            f"partition's {wanted} rows as they are",
            role=rows.role, wanted=wanted,
        )  # fmt: skip


def _settings(request: FitRequest) -> list[str]:
    block = request.batch if request.block == "auto" else request.block
    checks = (
        (request.epochs < 1, f"epochs must be at least 1, not {request.epochs}"),
        (request.batch < 1, f"batch must be at least 1, not {request.batch}"),
        (not 1 <= block <= max(request.batch, 1), f"block must be 1 to batch ({request.batch}), not {block}"),
        (not 0 <= request.seed < MAX_SEED, f"seed must be in [0, 2**64), not {request.seed}"),
        (
            request.batch >= 1 and request.epochs * -(-len(request.train) // request.batch) > MAX_UPDATES,
            f"{request.epochs} epochs in batches of {request.batch} are more than {MAX_UPDATES} updates",
        ),
        _interval(request.checkpoint_every, "updates"),
        (request.keep_best and request.validation is None, "keep_best needs validation rows"),
    )
    return [text for wrong, text in checks if wrong] + _optimizer(request.optimizer)


def _optimizer(spec: OptimizerSpec) -> list[str]:
    problems = [
        f"{name} must be in [0, 1), not {value}"
        for name, value in (("momentum", spec.momentum), ("beta1", spec.beta1), ("beta2", spec.beta2))
        if not 0 <= value < 1
    ]
    for name, positive in (("rate", spec.rate), ("epsilon", spec.epsilon), ("clip", spec.clip)):
        if positive is not None and not 0 < positive < np.inf:
            problems.append(f"{name} must be positive and finite, not {positive}")
    return problems


def _model(request: FitRequest) -> list[str]:
    dense, loss = request.model.dense, request.loss
    if not dense:
        return ["the model has no layers"]
    if any(layer.inputs < 1 or layer.outputs < 1 for layer in dense):
        return ["every layer needs at least 1 input and 1 output"]
    joints = [
        f"a layer of {a.outputs} outputs cannot feed one of {b.inputs} inputs"
        for a, b in pairwise(dense)
        if a.outputs != b.inputs
    ]
    outputs, expected = request.model.outputs, request.model.parameters
    checks = (
        (loss == "logistic" and outputs != 1, f"the loss logistic takes 1 output, not {outputs}"),
        (
            loss == "cross_entropy" and outputs < 2,
            f"the loss cross_entropy takes one output a class, at least 2, not {outputs}",
        ),
        (request.float_targets and loss != "mse", f"float targets are fitted with the loss mse, not {loss}"),
        (
            request.initial.shape != (expected,),
            f"{request.initial.size} initial values were given for {expected} parameters",
        ),
        (not np.isfinite(request.initial).all(), "an initial value is not finite"),
    )
    return joints + [text for wrong, text in checks if wrong]


def _rows(request: FitRequest, rows: Rows) -> list[str]:
    model, role = request.model, rows.role
    problems = []
    if len(rows) < 1:
        return [f"there are no {role} rows"]
    if rows.x.ndim != 2 or rows.x.shape[1] != model.inputs:
        width = rows.x.shape[1] if rows.x.ndim == 2 else rows.x.shape
        problems.append(f"the {role} rows have {width} features, the model takes {model.inputs}")
    if not np.isfinite(rows.x).all():
        row, column = np.argwhere(~np.isfinite(rows.x))[0]
        problems.append(f"{role} row {row}, feature {column} is {rows.x[row, column]}; only finite values can be used")
    elif request.standardize and np.abs(rows.x).max() > LARGEST_SCALED:
        problems.append(f"the {role} rows hold {np.abs(rows.x).max():g}; above {LARGEST_SCALED:g} no deviation can be computed")
    if len(rows.y) != len(rows):
        return [*problems, f"there are {len(rows.y)} {role} targets for {len(rows)} rows"]
    return problems + (_float_targets if request.float_targets else _labels)(request, rows)


def _labels(request: FitRequest, rows: Rows) -> list[str]:
    if rows.y.ndim != 1 or not np.issubdtype(rows.y.dtype, np.integer):
        return [f"the {rows.role} targets are {rows.y.dtype}{list(rows.y.shape)}, not one integer label a row"]
    classes = 2 if request.loss == "logistic" else request.model.outputs
    low, high = int(rows.y.min()), int(rows.y.max())
    if low < 0 or high >= classes:
        return [f"{rows.role} labels go from {low} to {high}; this model knows 0 to {classes - 1}"]
    return []


def _float_targets(request: FitRequest, rows: Rows) -> list[str]:
    wanted = (len(rows), request.model.outputs)
    if rows.y.shape != wanted or not np.issubdtype(rows.y.dtype, np.floating):
        return [f"the {rows.role} targets are {rows.y.dtype}{list(rows.y.shape)}, the model gives float{list(wanted)}"]
    return [] if np.isfinite(rows.y).all() else [f"a {rows.role} target is not finite"]


def check_evaluation(fitted: FittedParts, rows: Rows) -> None:
    """Rows that this model can be evaluated on; any role may be looked at, none is fitted."""
    model, spec = fitted.spec.model, fitted.spec
    if min(rows.x.ndim, rows.y.ndim) < 1 or len(rows) < 1:
        raise InvalidRequest(f"there are no {rows.role} rows to evaluate on")
    if rows.x.ndim != 2 or rows.x.shape[1] != model.inputs:
        raise InvalidRequest(f"the rows have {rows.x.shape[-1]} features, the model takes {model.inputs}")
    if not np.isfinite(rows.x).all():
        raise InvalidRequest("a feature is not finite")
    if len(rows.y) != len(rows):
        raise InvalidRequest(f"there are {len(rows.y)} targets for {len(rows)} rows")
    labels = np.issubdtype(rows.y.dtype, np.integer)
    if labels == spec.float_targets:
        raise InvalidRequest("the rows have labels where the model gives values, or the reverse")
    if labels:
        if rows.y.ndim != 1:
            raise InvalidRequest(f"the labels are {list(rows.y.shape)}, not one a row")
        classes = 2 if spec.loss == "logistic" else model.outputs
        if int(rows.y.min()) < 0 or int(rows.y.max()) >= classes:
            raise InvalidRequest(f"a label lies outside 0 to {classes - 1}, which this model knows")
    elif rows.y.shape != (len(rows), model.outputs):
        raise InvalidRequest(f"the targets are {list(rows.y.shape)}, the model gives {[len(rows), model.outputs]}")


def check_features(fitted: FittedParts, x: np.ndarray) -> None:
    """Features [rows, F] that this model can predict from."""
    if x.ndim != 2 or x.shape[1] != fitted.spec.model.inputs or len(x) < 1:
        raise InvalidRequest(f"features {list(x.shape)} were given; this model takes [rows, {fitted.spec.model.inputs}]")
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise InvalidRequest(f"row {row}, feature {column} is {x[row, column]}; only finite values can be used")


def check_simulation(request: SimulationRequest) -> None:
    """Raises InvalidExperiment with every problem."""
    checks = (
        (not 1 <= request.samples <= MAX_SAMPLES, f"samples must be 1 to 10**12, not {request.samples}"),
        (not 0 <= request.seed < MAX_SEED, f"seed must be in [0, 2**64), not {request.seed}"),
        _interval(request.checkpoint_every, "samples"),
    )
    problems = [text for wrong, text in checks if wrong]
    if problems:
        raise InvalidExperiment(problems)


def _interval(every: int | None, unit: str) -> tuple[bool, str]:
    return every is not None and every < 1, f"checkpoint_every must be at least 1 of the {unit}, not {every}"
