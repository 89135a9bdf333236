"""``phalanx status``: what a job is doing, once or as it goes on."""

import json
import sys
from typing import Annotated

import typer

from phalanx.commands import job_texts, options
from phalanx.commands.finding import find_job
from phalanx.commands.watching import watch
from phalanx.console import note, print_result

Watch = Annotated[bool, typer.Option("--watch", help="Show it until the job has ended. Closing this does not touch the job.")]


def status(job: options.Job, watching: Watch = False, as_json: options.StatusJson = False) -> None:
    """Show what a job is doing: state, progress, losses, and each member's share, latency and state."""
    found = find_job(job)
    if not watching:
        now = found.status()
        print_result(job_texts.document(now, found.directory), job_texts.summary(now), as_json)
        return
    try:
        if as_json:
            for seen in found.watch():
                print(json.dumps(job_texts.document(seen, found.directory)), flush=True)
        else:
            watch(found, sys.stdout)
    except KeyboardInterrupt:
        note(f"no longer watching; job {found.id} goes on", as_json)
        raise typer.Exit(130) from None
