"""Outcomes as a JSON document and arrays, and back: a result that can be asked again when everything else is gone."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from phalanx_proto import arrays, tensors
from phalanx_proto.arrays import Arrays
from phalanx_proto.errors import CorruptData, InvalidRequest
from phalanx_proto.experiment import ProgramSpec
from phalanx_proto.jobs import (
    EpochRecord,
    FitOutcome,
    FitSeconds,
    FittedParts,
    MemberReport,
    Scaling,
    Score,
    SimulationOutcome,
    SimulationSeconds,
)

Outcome = FitOutcome | SimulationOutcome
Document = dict[str, Any]
FORMAT = 1
PROGRAM = "program."
"""Before the name of an artifact, among the arrays."""
_FIT_SPECIAL = ("fitted", "history", "train", "validation", "test", "members", "seconds", "notes", "manifest")


def to_document(outcome: Outcome) -> tuple[Document, dict[str, NDArray[Any]]]:
    """Either outcome."""
    return fit_to_document(outcome) if isinstance(outcome, FitOutcome) else simulation_to_document(outcome)


def from_document(document: Mapping[str, Any], given: Arrays) -> Outcome:
    """The outcome that ``to_document`` took apart; raises ``CorruptData``, ``InvalidRequest``."""
    readers: dict[str, Callable[[Mapping[str, Any], Arrays], Outcome]]
    readers = {"fit": fit_from_document, "simulation": simulation_from_document}
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in readers or document.get("format") != FORMAT:
        raise InvalidRequest(f"a result of the kind {kind!r:.40} cannot be read here; use the version that wrote it")
    try:
        return readers[kind](document, arrays.checked(document, given))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(f"the result cannot be read ({error}); use the version that wrote it") from None


def fit_to_document(outcome: FitOutcome) -> tuple[Document, dict[str, NDArray[Any]]]:
    """A fit; the arrays are those of ``parts_to_document``."""
    fitted, held = parts_to_document(outcome.fitted)
    names = [field.name for field in dataclasses.fields(outcome) if field.name not in _FIT_SPECIAL]
    document = {
        "format": FORMAT, "kind": "fit", "fitted": fitted, "values": {name: getattr(outcome, name) for name in names},
        "history": [
            {"epoch": line.epoch, "train": score_to_document(line.train), "validation": score_to_document(line.validation)}
            for line in outcome.history
        ],
        **{role: score_to_document(getattr(outcome, role)) for role in ("train", "validation", "test")},
        **_common(outcome), arrays.KEY: arrays.describe(held),
    }  # fmt: skip
    return document, held


def fit_from_document(document: Mapping[str, Any], held: Arrays) -> FitOutcome:
    """The fit that ``fit_to_document`` took apart, from arrays that were compared with their digests."""
    fitted = parts_from_document(document["fitted"], held)
    if tensors.digest(fitted.parameters) != document["values"]["digest"]:
        raise CorruptData("the parameters are not those that the result's digest names")
    return FitOutcome(
        **document["values"], fitted=fitted, history=tuple(_epoch(line) for line in document["history"]),
        train=_score(document["train"]),
        validation=score_from_document(document["validation"]), test=score_from_document(document["test"]),
        seconds=FitSeconds(**document["seconds"]), **_common_back(document),
    )  # fmt: skip


def simulation_to_document(outcome: SimulationOutcome) -> tuple[Document, dict[str, NDArray[Any]]]:
    """A simulation; it has no arrays."""
    names = [f.name for f in dataclasses.fields(outcome) if f.name not in ("members", "seconds", "notes", "manifest")]
    values = {name: getattr(outcome, name) for name in names}
    return {"format": FORMAT, "kind": "simulation", "values": values, **_common(outcome), arrays.KEY: {}}, {}


def simulation_from_document(document: Mapping[str, Any], held: Arrays) -> SimulationOutcome:
    """The simulation that ``simulation_to_document`` took apart."""
    seconds = SimulationSeconds(**document["seconds"])
    return SimulationOutcome(**document["values"], seconds=seconds, **_common_back(document))


def parts_to_document(fitted: FittedParts) -> tuple[Document, dict[str, NDArray[Any]]]:
    """A fitted model: arrays ``parameters`` [P], ``program.NAME`` (uint8) and, where scaled, ``mean`` and ``scale`` [F]."""
    held = {"parameters": fitted.parameters}
    held |= {f"{PROGRAM}{name}": arrays.of_bytes(data) for name, data in fitted.programs.items()}
    if fitted.scaling is not None:
        held |= {"mean": fitted.scaling.mean, "scale": fitted.scaling.scale}
    return {"spec": fitted.spec.to_json(), "source": fitted.source, "scaled": fitted.scaling is not None}, held


def parts_from_document(document: Mapping[str, Any], held: Arrays) -> FittedParts:
    """The fitted model that ``parts_to_document`` took apart."""
    programs = {name.removeprefix(PROGRAM): held[name].tobytes() for name in held if name.startswith(PROGRAM)}
    scaling = Scaling(mean=held["mean"], scale=held["scale"]) if document["scaled"] else None
    return FittedParts(
        spec=ProgramSpec.from_json(document["spec"]), programs=programs, parameters=held["parameters"], scaling=scaling,
        source=document["source"],
    )  # fmt: skip


def score_to_document(score: Score | None) -> Document | None:
    """A score; what JSON has no number for, such as an overflowed loss, is written as a word."""
    if score is None:
        return None
    loss = score.loss if math.isfinite(score.loss) else str(score.loss)
    return {**dataclasses.asdict(score), "loss": loss}


def score_from_document(document: Mapping[str, Any] | None) -> Score | None:
    """The score that ``score_to_document`` wrote."""
    return None if document is None else _score(document)


def _score(document: Mapping[str, Any]) -> Score:
    return Score(**{**document, "loss": float(document["loss"])})


def _epoch(line: Mapping[str, Any]) -> EpochRecord:
    return EpochRecord(epoch=line["epoch"], train=_score(line["train"]), validation=score_from_document(line["validation"]))


def _common(outcome: Outcome) -> Document:
    return {
        "members": [dataclasses.asdict(member) for member in outcome.members],
        "seconds": dataclasses.asdict(outcome.seconds),
        "notes": list(outcome.notes),
        "manifest": dict(outcome.manifest),
    }


def _common_back(document: Mapping[str, Any]) -> dict[str, Any]:
    members: Sequence[Mapping[str, Any]] = document["members"]
    return {
        "members": tuple(MemberReport(**member) for member in members),
        "notes": tuple(document["notes"]),
        "manifest": document["manifest"],
    }
