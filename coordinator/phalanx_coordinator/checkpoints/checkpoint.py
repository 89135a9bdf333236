"""A run between two updates, as a value: all that it needs to go on, and no trace of who computed it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from phalanx_proto.errors import CorruptData
from phalanx_proto.experiment import DType
from phalanx_proto.fingerprint import source_fingerprint
from phalanx_proto.jobs import Level
from phalanx_proto.version import VERSION
from phalanx_worker.inventory import Inventory, numeric_facts

Kind = Literal["fit", "simulation"]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What computed a checkpoint: where all of it is the same, the run goes on in the same bits."""

    versions: Mapping[str, str | None]
    """Of phalanx, jax and jaxlib."""
    source: str
    """Fingerprint of the numeric source files."""
    numeric: Mapping[str, str | None]
    """What can change a bit on the canonical engine, but for the program."""

    @classmethod
    def here(cls, machine: Inventory) -> "Origin":
        """What would compute on this machine, with what is installed here."""
        found = machine.platform.versions
        versions = {"phalanx": VERSION, "jax": found.get("jax"), "jaxlib": found.get("jaxlib")}
        return cls(versions=versions, source=source_fingerprint(), numeric=numeric_facts(machine, "cpu"))


@dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """What a run is made of after ``update`` updates."""

    kind: Kind
    experiment: str
    """Digest of the experiment."""
    dtype: DType | None
    """The group dtype of a fit."""
    update: int
    """Updates that are committed, which is the next one's number; of a simulation, samples that are counted."""
    level: Level
    """What the run could promise so far."""
    origin: Origin
    state: Mapping[str, Any]
    """The rest as JSON values: the best epoch of a fit, or the ledger of a simulation; members and seconds so far."""
    arrays: Mapping[str, NDArray[Any]]
    """Of a fit: ``parameters`` [P], ``state-0``... of the optimizer and ``best`` [P] in the group dtype; ``sums`` [2 + M] of
    the epoch under way and ``history`` [epochs, roles, 2 + M], Float64."""
    notes: tuple[str, ...] = ()
    """What reading it brought to light, such as a newer one that is damaged; it is not written."""

    def to_document(self) -> dict[str, Any]:
        """JSON values of everything but the arrays, read by ``from_document``."""
        origin = {"versions": dict(self.origin.versions), "source": self.origin.source, "numeric": dict(self.origin.numeric)}
        return {
            "kind": self.kind, "experiment": self.experiment, "dtype": self.dtype, "update": self.update,
            "level": self.level, "origin": origin, "state": dict(self.state),
        }  # fmt: skip

    @classmethod
    def from_document(cls, document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> "Checkpoint":
        """The value that ``to_document`` took apart; raises ``CorruptData``."""
        names = ("kind", "experiment", "dtype", "update", "level", "state")
        try:
            return cls(**{name: document[name] for name in names}, origin=Origin(**document["origin"]), arrays=arrays)
        except (KeyError, TypeError) as error:
            raise CorruptData(f"the manifest lacks a part of a checkpoint: {error}") from None
