"""The epochs of a fit, kept as the canonical engine's sums, from which the means that people see follow."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_coordinator.runs.scoring import score_of
from phalanx_proto.experiment import ProgramSpec
from phalanx_proto.jobs import EpochRecord


class History:
    """The epochs so far, in order."""

    def __init__(self, spec: ProgramSpec) -> None:
        self.records: list[EpochRecord] = []
        self._spec = spec
        self._sums: list[list[list[float]]] = []

    def add(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Epochs that have ended: their ``train`` and ``validation`` sums [2 + M], the second None without such rows."""
        for line in lines:
            train, validation = line["train"], line["validation"]
            self._sums.append([train] if validation is None else [train, validation])
            held_out = None if validation is None else score_of(validation, self._spec)
            record = EpochRecord(epoch=len(self.records), train=score_of(train, self._spec), validation=held_out)
            self.records.append(record)

    def sums(self) -> NDArray[np.float64]:
        """All of it as [epochs, 1 or 2, 2 + M]: training sums, then validation sums."""
        return np.array(self._sums, np.float64)

    def restore(self, sums: NDArray[np.float64]) -> None:
        """Begin again with what ``sums`` gave."""
        self._sums, self.records = [], []
        self.add({"train": epoch[0], "validation": epoch[1] if len(epoch) > 1 else None} for epoch in sums.tolist())
