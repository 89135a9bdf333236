"""``phalanx jobs``: the jobs that you have, wherever they lie."""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.commands import job_texts, options
from phalanx.console import note, print_result
from phalanx_proto import job_files

Folders = Annotated[
    list[Path] | None,
    typer.Argument(metavar="DIR", help="Folders of job directories. (default: every job that you have started)"),
]


def jobs(folders: Folders = None, as_json: options.StatusJson = False) -> None:
    """List jobs, running or ended, with their state and how far they are."""
    found, problems = [], []
    places: list[Path | None] = [*folders] if folders else [None]
    for folder in places:
        more, wrong = job_files.listed(None if folder is None else folder.expanduser().absolute())
        found += more
        problems += wrong
    for problem in problems:
        note(f"phalanx: not listed: {problem}", as_json)
    texts = job_texts.table(found) if found else "no jobs"
    print_result({"jobs": [job_texts.document(status, folder) for folder, status in found]}, texts, as_json)
