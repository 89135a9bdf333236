"""``phalanx cluster``: checks a cluster file without starting anything, and converts the earlier text format to TOML."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.commands import options
from phalanx.console import note, print_result

if TYPE_CHECKING:
    from phalanx.embedded import ClusterFile

app = typer.Typer(no_args_is_help=True, help="Check a cluster file, or convert one of the earlier text format to TOML.")
File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A cluster file, mode 0600.")]
Into = Annotated[Path | None, typer.Option(metavar="NEW", help="Write it into a new file of mode 0600 instead of printing it.")]
EXPLAINED = """\
# Converted. python must name the Python of a Phalanx environment on each machine:
# phalanx doctor tells where it does not, and phalanx enroll makes one.
"""


@app.command()
def check(file: File, as_json: options.StatusJson = False) -> None:
    """Read the file, tell every fault with its line, and list its workers. Nothing is started and no machine is asked."""
    from phalanx.embedded import read_cluster

    group = read_cluster(file)
    document = {
        "precision": group.precision,
        "oversubscribe": group.oversubscribe,
        "workers": [record.public() for record in group.workers],
    }
    print_result(document, _summary(group), as_json)


@app.command()
def convert(file: File, into: Into = None) -> None:
    """Print the group of either format as TOML that reads back equal."""
    from phalanx.embedded import create_private, group_text, read_cluster

    group = read_cluster(file)
    over_ssh = any(record.transport == "ssh" for record in group.workers)
    text = (EXPLAINED if over_ssh else "") + group_text(group)
    if into is None:
        print(text, end="", flush=True)
    else:
        create_private(into, text)
        note(f"{into}: {len(group.workers)} workers, {group.precision}", quiet=False)


def _summary(group: "ClusterFile") -> str:
    """A line for each worker; what is private of it is not shown."""
    width = max(len(record.name) for record in group.workers)
    number = f"{len(group.workers)} worker{'s' if len(group.workers) > 1 else ''}"
    lines = [f"{number}, {group.precision}{', oversubscribe' if group.oversubscribe else ''}"]
    for record in group.workers:
        slots = f"{record.slots} slot{'s' if record.slots > 1 else ''}"
        device = record.backend if record.backend == "cpu" else f"{record.backend} {record.device}"
        lines.append(f"{record.name:<{width}}  {record.transport:<6}  {slots:<9}  {device:<7}  weight {record.weight:g}")
    return "\n".join(lines)
