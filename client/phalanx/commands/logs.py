"""``phalanx logs``: what a job's coordinator and workers said."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from phalanx.commands import options
from phalanx.commands.finding import find_job
from phalanx.console import note
from phalanx.job_handles import LOOK_EVERY, DirectoryJob
from phalanx_proto import job_files

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")]
STEP = 1 << 16


def logs(job: options.Job, follow: Follow = False) -> None:
    """Show a job's log; the name of who spoke is in front of each line."""
    found = find_job(job)
    try:
        _show(found, follow)
    except KeyboardInterrupt:
        note(f"no longer following; job {found.id} goes on", False)
        raise typer.Exit(130) from None


def _show(job: DirectoryJob, follow: bool) -> None:
    path, shown = job.directory / job_files.LOG, 0
    while True:
        ended = not follow or (status := job.status()).ended or status.state == "COORDINATOR_OFFLINE"
        shown = _copy(path, shown)
        if ended:
            return
        time.sleep(LOOK_EVERY)


def _copy(path: Path, shown: int) -> int:
    """Write what came after the first ``shown`` bytes; a file that was begun anew is shown from its beginning."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(shown if path.stat().st_size >= shown else 0)
        while piece := file.read(STEP):
            sys.stdout.write(piece.decode(errors="replace"))
        sys.stdout.flush()
        return file.tell()
