"""``phalanx worker``: becomes the worker's own program, which the client does not import."""

import os
import sys

import typer


def worker(context: typer.Context) -> None:
    """Serve as a worker of a group. Started by a coordinator, which speaks to it; options go to the worker as they are."""
    os.execv(sys.executable, [sys.executable, "-m", "phalanx_worker", *context.args])
