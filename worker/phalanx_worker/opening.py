"""What an engine needs to bind a fit: two arenas, the artifacts, and one JSON description. Shared by pool and daemon."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx_proto.experiment import Sizes
from phalanx_proto.schedule import Schedule
from phalanx_worker.arena import Arena
from phalanx_worker.mailbox import FitShape


@dataclass(frozen=True, kw_only=True)
class FitOpening:
    """Everything about a fit that one machine is told."""

    sizes: Sizes
    schedule: Schedule
    artifacts: Mapping[str, bytes]
    slots: int
    weights: Sequence[float]
    """Share of each slot where this machine computes alone; 0 for a slot that computes nothing."""
    held: int
    remote: int = 0
    state: Sequence[int] = ()
    """Lengths of the optimizer's state arrays; the canonical engine's."""
    keep_best: bool = False
    validation_rows: int = 0
    timeout: float = 600.0
    """Seconds for the slots of a machine to answer each other on one update."""

    def shape(self) -> FitShape:
        """The sizes of the work arena."""
        return FitShape(sizes=self.sizes, schedule=self.schedule, slots=self.slots, held=self.held, remote=self.remote)

    def work_arena(self) -> Arena:
        """The shared memory in which the slots of this machine work together."""
        return Arena.create(self.shape().layout())

    def saved(self) -> Mapping[str, tuple[tuple[int, ...], DTypeLike]]:
        """The arrays that a fit between two updates is made of, for ``Arena.create``: all that the next update depends on."""
        sizes = self.sizes
        arrays: dict[str, tuple[tuple[int, ...], DTypeLike]] = {"parameters": ((sizes.parameters,), sizes.dtype)}
        arrays |= {f"state-{number}": ((length,), sizes.dtype) for number, length in enumerate(self.state)}
        if self.keep_best:
            arrays["best"] = ((sizes.parameters,), sizes.dtype)
        return {**arrays, "sums": ((2 + sizes.metrics,), np.float64)}

    def body(self, role: str, slot: int, work: Arena, data: Sequence[Arena]) -> dict[str, Any]:
        """The ``open`` operation for one slot: role is canonical, member or follower."""
        return {
            "op": "open",
            "role": role,
            "slot": slot,
            "sizes": asdict(self.sizes),
            "schedule": asdict(self.schedule),
            "slots": self.slots,
            "held": self.held,
            "remote": self.remote,
            "weights": list(self.weights),
            "state": list(self.state),
            "keep_best": self.keep_best,
            "validation_rows": self.validation_rows,
            "timeout": self.timeout,
            "index": [(name, len(artifact)) for name, artifact in self.artifacts.items()],
            "work": work.describe(),
            "data": [arena.describe() for arena in data],
        }

    def descriptors(self, work: Arena, data: Sequence[Arena]) -> tuple[int, ...]:
        """The arenas' descriptors, in the order that ``open`` takes them."""
        return (work.descriptor, *(arena.descriptor for arena in data))

    def payload(self) -> bytes:
        """The artifacts one after another, in the order of the body's index."""
        return b"".join(self.artifacts.values())


def data_arena(arrays: Mapping[str, NDArray[Any]]) -> Arena:
    """The arrays copied once into shared memory, for every slot to read."""
    arena = Arena.create({name: (array.shape, array.dtype) for name, array in arrays.items()})
    for name, array in arrays.items():
        np.copyto(arena[name], array)
    return arena
