"""``phalanx doctor``: what works on every machine of a group, and the next step where something does not."""

import shlex
import shutil
from pathlib import Path
from typing import Annotated

import typer

from phalanx.commands import options
from phalanx.console import note, print_result

CANNOT_JOIN = 3
"""Exit code where a machine could not join."""
File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A cluster file, mode 0600.")]
Clean = Annotated[bool, typer.Option("--clean", help="End left-over workers of yours whose coordinator is gone.")]


def doctor(file: File, clean: Clean = False, as_json: options.StatusJson = False, quiet: options.Quiet = False) -> None:
    """Try every machine of a group as a run would, side by side, and show one table of what works and what does not.

    Exit code 0 only if all could join. Left-over workers keep nobody out; --clean ends them, and never one of a living run.
    """
    from phalanx.embedded import examination_document, examination_summary, examine_group

    found = examine_group(file, clean=clean, tell=lambda text: note(text, quiet or as_json))
    text = examination_summary(found, shutil.get_terminal_size((110, 24)).columns)
    if not all(finding.strays.clean for finding in found.findings):
        text += f"\n\nWhat is left over of workers can be ended and removed: phalanx doctor {shlex.quote(str(file))} --clean"
    print_result(examination_document(found), text, as_json)
    if not found.can_join:
        raise typer.Exit(CANNOT_JOIN)
