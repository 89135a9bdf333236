"""``phalanx serve``: becomes the coordinator service's own program, which the client does not import."""

import os
import sys

import typer


def serve(context: typer.Context) -> None:
    """Keep jobs and run them in their turn, for every client of yours: phalanx.connect()."""
    os.execv(sys.executable, [sys.executable, "-m", "phalanx_coordinator.serve", *context.args])
