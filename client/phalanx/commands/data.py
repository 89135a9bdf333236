"""The data that a command line names, and settings that suit it where none are given."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from phalanx import datasets
from phalanx.dataset import Dataset
from phalanx_proto.errors import InvalidExperiment, InvalidRequest


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings of a fit, each replaced by the option that is given."""

    hidden: tuple[int, ...]
    epochs: int
    batch: int
    rate: float
    standardize: bool


PRESETS: Mapping[str, Preset] = {
    "iris": Preset(hidden=(8,), epochs=40, batch=32, rate=0.01, standardize=True),
    "digits": Preset(hidden=(64,), epochs=30, batch=32, rate=0.003, standardize=True),
    "synthetic": Preset(hidden=(64,), epochs=10, batch=256, rate=0.01, standardize=False),
}
FILE_PRESET = Preset(hidden=(32,), epochs=40, batch=32, rate=0.01, standardize=True)
SYNTHETIC: Mapping[str, int] = {"rows": 10_000, "inputs": 16, "classes": 4}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Which data: a name of ``PRESETS``, or a file; and the shape, for synthetic data only."""

    name: str
    rows: int | None = None
    inputs: int | None = None
    classes: int | None = None
    seed: int = 42

    @property
    def preset(self) -> Preset:
        """The settings that suit it."""
        return PRESETS.get(self.name, FILE_PRESET)

    def load(self) -> Dataset:
        """The dataset; raises ``InvalidRequest`` for what is not there, or shapes where none is to be chosen."""
        shape = {"rows": self.rows, "inputs": self.inputs, "classes": self.classes}
        given = {name: value for name, value in shape.items() if value is not None}
        if self.name == "synthetic":
            return datasets.synthetic(**{**SYNTHETIC, **given}, seed=self.seed)
        if given:
            raise InvalidExperiment([f"--{name} is for --data synthetic; {self.name} has its own" for name in given])
        if self.name in PRESETS:
            return datasets.iris() if self.name == "iris" else datasets.digits()
        path = Path(self.name).expanduser()
        if path.suffix != ".npz" and not path.exists():
            known = ", ".join(PRESETS)
            raise InvalidRequest(
                f"--data must be {known} or the path of an .npz file with arrays x and y, not {self.name!r:.80}"
            )
        return Dataset.from_npz(path)
