"""Requests as a JSON document and arrays, and back: what a job's directory keeps and what travels to a coordinator.

The fields of a request that are plain values go as they are, so a new one needs no word here. On the way back every
array is compared with its digest, and the rows of each role with their fingerprint, which covers the role.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from phalanx_proto import arrays, tensors
from phalanx_proto.arrays import Arrays
from phalanx_proto.errors import CorruptData, InvalidRequest
from phalanx_proto.execution import Cluster, Device, Execution, Local
from phalanx_proto.experiment import Dense, ModelSpec, OptimizerSpec, Rows
from phalanx_proto.jobs import FitRequest, SimulationRequest

Request = FitRequest | SimulationRequest
Document = dict[str, Any]

FORMAT = 1
_EXECUTIONS: dict[str, type[Local] | type[Device] | type[Cluster]] = {"local": Local, "device": Device, "cluster": Cluster}
_ROLES = ("train", "validation", "test")
_FIT_SPECIAL = ("model", "initial", "optimizer", "execution", *_ROLES)


def to_document(request: Request) -> tuple[Document, dict[str, NDArray[Any]]]:
    """Either request."""
    return fit_to_document(request) if isinstance(request, FitRequest) else simulation_to_document(request)


def from_document(document: Mapping[str, Any], given: Arrays) -> Request:
    """The request that ``to_document`` took apart; raises ``CorruptData``, ``InvalidRequest``."""
    readers: dict[str, Callable[[Mapping[str, Any], Arrays], Request]]
    readers = {"fit": fit_from_document, "simulation": simulation_from_document}
    kind = document.get("kind")
    if kind not in readers:
        raise InvalidRequest(f"a request of the kind {kind!r:.40} is not known here; use the version that wrote it")
    return readers[str(kind)](document, given)


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
    _require_format(document)
    held = arrays.checked(document, given)
    try:
        special: dict[str, Any] = {
            "model": model_from_document(document["model"]), "initial": held["initial"],
            "optimizer": OptimizerSpec(**document["optimizer"]),
            **{role: _rows(role, document["rows"][role], held) for role in _ROLES},
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
    _require_format(document)
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
    values = dict(document)
    kind = values.pop("kind", None)
    if kind not in _EXECUTIONS:
        raise InvalidRequest(f"an execution of the kind {kind!r:.40} is not known here; use the version that wrote it")
    if "file" in values:
        values["file"] = Path(values["file"])
    return _EXECUTIONS[kind](**values)


def model_from_document(document: Mapping[str, Any]) -> ModelSpec:
    """The value that ``dataclasses.asdict`` took apart."""
    return ModelSpec(layers=tuple(Dense(**layer) if isinstance(layer, Mapping) else layer for layer in document["layers"]))


def _plain(request: Request, special: tuple[str, ...]) -> Document:
    names = [field.name for field in dataclasses.fields(request) if field.name not in special]
    return {name: getattr(request, name) for name in names}


def _rows(role: str, document: Mapping[str, Any] | None, held: Arrays) -> Rows | None:
    if document is None:
        return None
    rows = Rows(
        x=held[f"{role}.x"], y=held[f"{role}.y"], role=document["role"], fingerprint=str(document["fingerprint"]),
        source=str(document["source"]),
    )  # fmt: skip
    if rows.fingerprint != tensors.fingerprint(rows.x, rows.y, tag=rows.role):
        raise CorruptData(f"the {role} rows are not those that their fingerprint names")
    return rows


def _require_format(document: Mapping[str, Any]) -> None:
    if document.get("format") != FORMAT:
        raise InvalidRequest(
            f"the request has the format {document.get('format')!r:.20}, and this version reads {FORMAT}; "
            "use the version that wrote it"
        )


def _unreadable(error: Exception) -> InvalidRequest:
    return InvalidRequest(f"the request cannot be read ({error}); use the version that wrote it")
