"""The options of ``phalanx fit`` alone."""

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from phalanx.commands import options
from phalanx.commands.data import PRESETS, SYNTHETIC
from phalanx_proto.errors import InvalidRequest
from phalanx_proto.experiment import Activation, Loss, OptimizerName
from phalanx_proto.jobs import Reproducible

DATA, MODEL, TRAINING = "Data and roles", "Model", "Training"


def hidden_widths(texts: Sequence[str] | None) -> tuple[int, ...] | None:
    """Widths from ``--hidden 128,64``, which is ``--hidden 128 --hidden 64``; ``none`` stands for no layer.

    None where nothing was given. Raises ``InvalidRequest``.
    """
    if not texts:
        return None
    parts = [part.strip() for text in texts for part in text.split(",")]
    return () if parts == ["none"] else tuple(_named("--hidden", part) for part in parts)


def block_rows(text: str) -> int | Literal["auto"]:
    """Rows of a block, or ``auto``. Raises ``InvalidRequest``."""
    return "auto" if text == "auto" else _named("--block", text)


def _named(option: str, text: str) -> int:
    try:
        return options.read_whole(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"{option}: {error.message}") from None


def _by_data(setting: str) -> str:
    """What the presets hold of a setting, for a help text."""
    values = [getattr(preset, setting) for preset in PRESETS.values()]
    texts = [",".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values]
    return f"(default: {' / '.join(texts)} for {' / '.join(PRESETS)})"


def _synthetic(name: str) -> str:
    return f"{name.capitalize()} of synthetic data. (default: {SYNTHETIC[name]})"


Data = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE", rich_help_panel=DATA,
        help="iris, digits, synthetic, or an .npz file with arrays x and y (and groups, whose rows stay together).",
    ),
]  # fmt: skip
SyntheticRows = Annotated[
    int | None,
    typer.Option(parser=options.whole_number, metavar="N", rich_help_panel=DATA, help=_synthetic("rows")),
]
SyntheticInputs = Annotated[
    int | None,
    typer.Option(parser=options.whole_number, metavar="N", rich_help_panel=DATA, help=_synthetic("inputs")),
]
SyntheticClasses = Annotated[
    int | None,
    typer.Option(parser=options.whole_number, metavar="N", rich_help_panel=DATA, help=_synthetic("classes")),
]
Validation = Annotated[
    float, typer.Option(metavar="PART", rich_help_panel=DATA, help="Part of the rows that is scored after each epoch; 0: none.")
]
Test = Annotated[
    float,
    typer.Option(metavar="PART", rich_help_panel=DATA, help="Part of the rows that is scored once, after the fit; 0: none."),
]
Standardize = Annotated[
    bool | None,
    typer.Option(
        "--standardize/--no-standardize", rich_help_panel=DATA,
        help=f"Shift and scale features as the training rows say. {_by_data('standardize')}",
    ),
]  # fmt: skip
Hidden = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WIDTHS", rich_help_panel=MODEL,
        help=f"Widths of hidden layers: 128,64, or one --hidden each; none for no layer. {_by_data('hidden')}",
    ),
]  # fmt: skip
ActivationOption = Annotated[Activation, typer.Option("--activation", rich_help_panel=MODEL, help="Between the layers.")]
LossOption = Annotated[
    Loss | None,
    typer.Option("--loss", rich_help_panel=MODEL, help="(default: cross_entropy for labels, mse for float targets)"),
]
Optimizer = Annotated[OptimizerName, typer.Option(rich_help_panel=TRAINING)]
Epochs = Annotated[
    int | None,
    typer.Option(
        parser=options.whole_number, metavar="N", rich_help_panel=TRAINING,
        help=f"Passes over the training rows. {_by_data('epochs')}",
    ),
]  # fmt: skip
Batch = Annotated[
    int | None,
    typer.Option(
        parser=options.whole_number, metavar="ROWS", rich_help_panel=TRAINING, help=f"Rows of one update. {_by_data('batch')}"
    ),
]
Rate = Annotated[float | None, typer.Option(metavar="X", rich_help_panel=TRAINING, help=f"Learning rate. {_by_data('rate')}")]
Clip = Annotated[
    float | None, typer.Option(metavar="NORM", rich_help_panel=TRAINING, help="Bound of the global norm of the mean gradient.")
]
Block = Annotated[
    str,
    typer.Option(metavar="auto|ROWS", rich_help_panel=TRAINING, help="Rows of one gradient block; part of the experiment."),
]
KeepBest = Annotated[
    bool, typer.Option("--keep-best", rich_help_panel=TRAINING, help="Keep the epoch with the lowest validation loss.")
]
ReproducibleOption = Annotated[
    Reproducible,
    typer.Option("--reproducible", rich_help_panel=options.WHERE, help="bitwise refuses workers that compute other bits."),
]
