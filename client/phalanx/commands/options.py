"""Options that several commands share, and how numbers are written in them."""

from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated

import typer

from phalanx_proto.errors import InvalidRequest
from phalanx_proto.execution import Backend
from phalanx_proto.experiment import DType
from phalanx_proto.jobs import OnLoss

WHERE, RESULT = "Where it is computed", "Result"
MAX_DIGITS = 40
"""Of a whole number; enough for any seed, and too few to fill the memory with 1e999999999."""


def read_whole(text: str | int) -> int:
    """The whole number that is written as 10000000, 10_000_000 or 1e7; raises ``InvalidRequest``."""
    try:
        number = Decimal(text)
        if number.is_finite() and number.adjusted() < MAX_DIGITS and number == number.to_integral_value():
            return int(number)
    except InvalidOperation:
        pass
    raise InvalidRequest(f"{str(text)!r:.60} is not a whole number; write 1000, 1_000 or 1e3")


def whole_number(text: str | int) -> int:
    """``read_whole`` for the value of an option."""
    try:
        return read_whole(text)
    except InvalidRequest as error:
        raise typer.BadParameter(error.message) from None


Seed = Annotated[int, typer.Option(parser=whole_number, metavar="N", help="Decides every random choice: 0 to 2^64 - 1.")]
Workers = Annotated[
    int | None,
    typer.Option(
        parser=whole_number, metavar="N", rich_help_panel=WHERE,
        help="CPU engines of this machine; as many as asked for, or an error. (default: a conservative choice)",
    ),
]  # fmt: skip
Cluster = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=WHERE, help="A group of workers, from an owner-only TOML file."),
]
Device = Annotated[Backend | None, typer.Option(rich_help_panel=WHERE, help="One device of this machine; nothing falls back.")]
Precision = Annotated[
    DType | None, typer.Option("--dtype", rich_help_panel=WHERE, help="Precision of this machine's run. (default: float64)")
]
OnLossOption = Annotated[
    OnLoss,
    typer.Option(
        "--on-loss",
        rich_help_panel=WHERE,
        help="rebalance goes on without a lost worker and takes it in again when it is back.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", rich_help_panel=RESULT, help="A new directory for run-manifest.json, status.json and result.json."
    ),
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        "--checkpoint-every", parser=whole_number, metavar="N", rich_help_panel=RESULT,
        help="Updates (of a simulation, samples) from one checkpoint in --output DIR to the next. (default: by what they cost)",
    ),
]  # fmt: skip
Json = Annotated[
    bool,
    typer.Option(
        "--json", rich_help_panel=RESULT, help="Print what result.json has on standard output, and nothing else there."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=RESULT, help="No progress.")]
Background = Annotated[
    bool,
    typer.Option(
        "--background", rich_help_panel=RESULT,
        help="Go on without this terminal: print the job, which --output DIR names, and return.",
    ),
]  # fmt: skip
Job = Annotated[Path, typer.Option("--job", metavar="DIR", help="The job's directory, or its name in phalanx jobs.")]
StatusJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
