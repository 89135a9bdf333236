"""``phalanx fit``: a dense network on a dataset with protected roles."""

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from phalanx import api, models, training
from phalanx.commands import options
from phalanx.commands.data import PRESETS, Preset, Source
from phalanx.commands.placement import execution
from phalanx.commands.problems import Problems
from phalanx.console import note, print_result
from phalanx.dataset import Dataset, Partition
from phalanx.progress import shown
from phalanx_proto.errors import InvalidExperiment
from phalanx_proto.experiment import Activation, Loss, OptimizerName
from phalanx_proto.jobs import Reproducible

DATA, MODEL, TRAINING = "Data and roles", "Model", "Training"
BY_DATA = f"[default: by data, {{}}; for {', '.join(PRESETS)}]"


def _by_data(setting: str) -> str:
    """The part of a help text that says what a preset holds."""
    shown_as = [", ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" for value in _values(setting)]
    return f"[default: {' / '.join(shown_as)} for {' / '.join(PRESETS)}]"


def _values(setting: str) -> list[tuple[int, ...] | float]:
    return [getattr(preset, setting) for preset in PRESETS.values()]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model as the command line describes it; None is left to the preset or to the data."""

    hidden: tuple[int, ...] | None
    activation: Activation
    loss: Loss | None
    optimizer: OptimizerName
    clip: float | None
    standardize: bool | None
    seed: int

    def model(self, data: Dataset, preset: Preset) -> models.Model:
        """A model that fits the data; raises ``InvalidExperiment``."""
        hidden = preset.hidden if self.hidden is None else self.hidden
        standardize = preset.standardize if self.standardize is None else self.standardize
        network = models.mlp(data.features.shape[1], hidden, self._outputs(data), self.seed, activation=self.activation)
        if data.classes is not None:
            loss = self.loss or "cross_entropy"
            return models.classifier(network, standardize=standardize, optimizer=self.optimizer, loss=loss, clip=self.clip)
        if self.loss not in (None, "mse"):
            raise InvalidExperiment(f"--loss {self.loss} is for labels, and these data have float targets: use --loss mse")
        return models.regressor(network, standardize=standardize, optimizer=self.optimizer, clip=self.clip)

    def _outputs(self, data: Dataset) -> int:
        if data.classes is None:
            return 1 if data.targets.ndim == 1 else int(data.targets.shape[1])
        if self.loss == "logistic":
            if data.classes != 2:
                raise InvalidExperiment(f"--loss logistic is for 2 classes, and these data have {data.classes}")
            return 1
        return data.classes


def hidden_widths(texts: list[str] | None) -> tuple[int, ...] | None:
    """Widths from ``--hidden 128,64``, ``--hidden 128 --hidden 64`` or ``--hidden none``; raises ``typer.BadParameter``."""
    if not texts:
        return None
    if texts == ["none"]:
        return ()
    return tuple(options.whole_number(part.strip()) for text in texts for part in text.split(","))


def block_rows(text: str) -> int | Literal["auto"]:
    """Rows of a block, or "auto"; raises ``typer.BadParameter``."""
    return "auto" if text == "auto" else options.whole_number(text)


def fit(
    data: Annotated[str, typer.Option(metavar="iris|digits|synthetic|FILE.npz", rich_help_panel=DATA, help="What to fit; a file has arrays x and y.")],
    rows: Annotated[int | None, typer.Option(parser=options.whole_number, metavar="N", rich_help_panel=DATA, help="Of synthetic data.")] = None,
    inputs: Annotated[int | None, typer.Option(parser=options.whole_number, metavar="N", rich_help_panel=DATA, help="Of synthetic data.")] = None,
    classes: Annotated[int | None, typer.Option(parser=options.whole_number, metavar="N", rich_help_panel=DATA, help="Of synthetic data.")] = None,
):
    ...
