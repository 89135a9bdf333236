"""Requests as a JSON document and arrays, and back: what a job's directory keeps and what travels to a coordinator.

The fields of a request that are plain values go as they are, so a new one needs no word here. On the way back each is
held against its kind, every array is compared with its digest, and the rows of each role with their fingerprint, which
covers the role.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from phalanx_proto import arrays, plain_values, tensors
from phalanx_proto.arrays import Arrays
from phalanx_proto.errors import CorruptData, InvalidExperiment, InvalidRequest
from phalanx_proto.execution import Cluster, Device, Execution, Local
from phalanx_proto.experiment import Activation, Dense, ModelSpec, OptimizerSpec, Role, Rows
from phalanx_proto.jobs import FitRequest, SimulationRequest

Request = FitRequest | SimulationRequest
Document = dict[str, Any]

FORMAT = 1
_EXECUTIONS: dict[str, type[Local] | type[Device] | type[Cluster]] = {"local": Local, "device": Device, "cluster": Cluster}
_LOWEST = {"workers": 0, "ordinal": 0, "chunk": 1}
"""Of the numbers of an execution; the highest is the machine's."""
_ROLES = ("train", "validation", "test")
MOST_FAULTS = 20
"""That are told of one request."""
_FIT_SPECIAL = ("model", "initial", "optimizer", "execution", *_ROLES)


def to_document(request: Request) -> tuple[Document, dict[str, NDArray[Any]]]:
    """Either request."""
    return fit_to_document(request) if isinstance(request, FitRequest) else simulation_to_document(request)


def from_document(document: Mapping[str, Any], given: Arrays) -> Request:
    """The request that ``to_document`` took apart; raises ``CorruptData``, ``InvalidRequest``."""
    readers: dict[str, Callable[[Mapping[str, Any], Arrays], Request]]
    readers = {"fit": fit_from_document, "simulation": simulation_from_document}
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in readers:
        raise InvalidRequest(f"a request of the kind {kind!r:.40} is not known here; use the version that wrote it")
    return readers[kind](document, given)


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of all that a request's document says, but for where it is computed, and what is not of the document."""
    named = {name: value for name, value in document.items() if name not in ("execution", "digest")}
    return tensors.digest_bytes(json.dumps(named, sort_keys=True, separators=(",", ":")).encode())


def fit_to_document(request: FitRequest) -> tuple[Document, dict[str, NDArray[Any]]]:
    """A fit: its values, and the arrays ``initial`` [P] and ``ROLE.x``, ``ROLE.y`` of each role."""
    held: dict[str, NDArray[Any]] = {"initial": request.initial}
    rows: dict[str, Any] = {}
    for role in _ROLES:
        given: Rows | None = getattr(request, role)
        rows[role] = None if given is None else {"role": given.role, "fingerprint": given.fingerprint, "source": given.source}
        if given is not None:
            held |= {f"{role}.x": given.x, f"{role}.y": given.y}
    document = {
        "format": FORMAT, "kind": "fit", "values": _plain(request, _FIT_SPECIAL),
        "model": dataclasses.asdict(request.model), "optimizer": dataclasses.asdict(request.optimizer), "rows": rows,
        "execution": execution_to_document(request.execution), arrays.KEY: arrays.describe(held),
    }  # fmt: skip
    return document, held


def fit_from_document(document: Mapping[str, Any], given: Arrays) -> FitRequest:
    """The fit that ``fit_to_document`` took apart; raises ``CorruptData``, ``InvalidRequest``."""
    require_format(document)
    _settle([
        *plain_values.faults(FitRequest, document.get("values"), special=_FIT_SPECIAL),
        *plain_values.faults(OptimizerSpec, document.get("optimizer"), "optimizer "),
        *_model_faults(document.get("model")), *_rows_faults(document.get("rows")),
        *_execution_faults(document.get("execution")),
    ])  # fmt: skip
    held = arrays.checked(document, given)
    try:
        special: dict[str, Any] = {
            "model": model_from_document(document["model"]), "initial": held["initial"],
            "optimizer": _optimizer(document["optimizer"]),
            **{role: _rows(role, document["rows"].get(role), held) for role in _ROLES},
        }  # fmt: skip
        return FitRequest(**document["values"], **special, execution=execution_from_document(document["execution"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(error) from None


def simulation_to_document(request: SimulationRequest) -> tuple[Document, dict[str, NDArray[Any]]]:
    """A simulation; it has no arrays."""
    document = {
        "format": FORMAT, "kind": "simulation", "values": _plain(request, ("execution",)),
        "execution": execution_to_document(request.execution), arrays.KEY: {},
    }  # fmt: skip
    return document, {}


def simulation_from_document(document: Mapping[str, Any], given: Arrays) -> SimulationRequest:
    """The simulation that ``simulation_to_document`` took apart; raises ``CorruptData``, ``InvalidRequest``."""
    require_format(document)
    plain = plain_values.faults(SimulationRequest, document.get("values"), special=("execution",))
    _settle([*plain, *_execution_faults(document.get("execution"))])
    try:
        return SimulationRequest(**document["values"], execution=execution_from_document(document["execution"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(error) from None


def execution_to_document(execution: Execution) -> Document:
    """Where it is computed; the path of a cluster file is made absolute, so that it holds in every working directory."""
    kind = next(name for name, known in _EXECUTIONS.items() if isinstance(execution, known))
    values = {"kind": kind, **dataclasses.asdict(execution)}
    if isinstance(execution, Cluster):
        values["file"] = str(execution.file.expanduser().absolute())
    return values


def execution_from_document(document: Mapping[str, Any]) -> Execution:
    """The execution that ``execution_to_document`` wrote; raises ``InvalidRequest``."""
    _settle(_execution_faults(document))
    values = dict(document)
    kind = values.pop("kind")
    if "file" in values:
        values["file"] = Path(values["file"])
    return _EXECUTIONS[kind](**values)


def _execution_faults(document: object) -> list[str]:
    if not isinstance(document, Mapping):
        return ["the execution is missing"]
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _EXECUTIONS:
        return [f"an execution of the kind {plain_values.shown(kind)} is not known here; use the version that wrote it"]
    values = {name: value for name, value in document.items() if name != "kind"}
    found = plain_values.faults(_EXECUTIONS[kind], values, "execution ")
    if found:
        return found
    return [
        f"execution {name} must be at least {low}, not {values[name]}"
        for name, low in _LOWEST.items()
        if values.get(name) is not None and values[name] < low
    ]


def model_from_document(document: Mapping[str, Any]) -> ModelSpec:
    """The value that ``dataclasses.asdict`` took apart."""
    return ModelSpec(layers=tuple(Dense(**layer) if isinstance(layer, Mapping) else layer for layer in document["layers"]))


def _model_faults(document: object) -> list[str]:
    layers = document.get("layers") if isinstance(document, Mapping) else None
    if not isinstance(layers, list | tuple):
        return ["the model has no layers that can be read"]
    found = []
    for number, layer in enumerate(layers):
        if isinstance(layer, Mapping):
            found += plain_values.faults(Dense, layer, f"layer {number} ")
        elif not plain_values.fits(layer, Activation):
            wanted = f"a dense layer or {plain_values.told(Activation)}"
            found.append(f"layer {number} must be {wanted}, not {plain_values.shown(layer)}")
    return found


def _rows_faults(document: object) -> list[str]:
    if not isinstance(document, Mapping) or document.get("train") is None:
        return ["there are no training rows"]
    found = []
    for role in _ROLES:
        given = document.get(role)
        if given is None:
            continue
        for name, kind in (("role", Role), ("fingerprint", str), ("source", str)):
            value = given.get(name) if isinstance(given, Mapping) else None
            if not plain_values.fits(value, kind):
                found.append(
                    f"the {name} of the {role} rows must be {plain_values.told(kind)}, not {plain_values.shown(value)}"
                )
    return found


def _settle(faults: list[str]) -> None:
    if faults:
        raise InvalidExperiment(faults[:MOST_FAULTS])


def _optimizer(document: Mapping[str, Any]) -> OptimizerSpec:
    """Whole numbers become Float64 ones: one and the same experiment has one digest."""
    values: dict[str, Any] = {name: float(value) if type(value) is int else value for name, value in document.items()}
    return OptimizerSpec(**values)


def _plain(request: Request, special: tuple[str, ...]) -> Document:
    names = [field.name for field in dataclasses.fields(request) if field.name not in special]
    return {name: getattr(request, name) for name in names}


def _rows(role: str, document: Mapping[str, Any] | None, held: Arrays) -> Rows | None:
    if document is None:
        return None
    x, y = held[f"{role}.x"], held[f"{role}.y"]
    if x.ndim != 2 or x.dtype != "float64" or y.ndim < 1:
        raise InvalidRequest(
            f"the {role} rows must be x float64 [rows, features] and y [rows, ...], not {x.dtype}{list(x.shape)} and "
            f"{y.dtype}{list(y.shape)}"
        )
    rows = Rows(x=x, y=y, role=document["role"], fingerprint=document["fingerprint"], source=document["source"])
    if rows.fingerprint != tensors.fingerprint(rows.x, rows.y, tag=rows.role):
        raise CorruptData(f"the {role} rows are not those that their fingerprint names")
    return rows


def require_format(document: Mapping[str, Any]) -> None:
    """Raises ``InvalidRequest`` for a document of another format."""
    if document.get("format") != FORMAT:
        raise InvalidRequest(
            f"the request has the format {document.get('format')!r:.20}, and this version reads {FORMAT}; "
            "use the version that wrote it"
        )


def _unreadable(error: Exception) -> InvalidRequest:
    return InvalidRequest(f"the request cannot be read ({error}); use the version that wrote it")
