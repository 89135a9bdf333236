"""``phalanx serve``: becomes the coordinator service's own program, which the client does not import."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from phalanx.commands import options

Directory = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where jobs and arrays are kept. (default: in your state directory)")
]
Slots = Annotated[
    int | None,
    typer.Option(
        parser=options.whole_number, metavar="N",
        help="CPU slots that all jobs together may use. (default: all of this machine's)",
    ),
]  # fmt: skip
Socket = Annotated[Path | None, typer.Option(metavar="PATH", help="Where to listen. (default: in your runtime directory)")]
Where = Annotated[bool, typer.Option("--where", help="Print the socket that a service would listen on, and end.")]


def serve(
    directory: Directory = None, slots: Slots = None, socket: Socket = None, where: Where = False,
    as_json: options.StatusJson = False,
) -> None:  # fmt: skip
    """Keep jobs and run them in their turn, for every client of yours: phalanx.connect().

    It runs until SIGTERM or Ctrl-C. The jobs that it has started go on without it; the next one takes up those that wait.
    """
    values = {"--directory": directory, "--slots": slots, "--socket": socket}
    words = [f"{name}={value}" for name, value in values.items() if value is not None]
    words += ["--where"] * where + ["--json"] * as_json
    os.execv(sys.executable, [sys.executable, "-m", "phalanx_coordinator.service.serve", *words])
