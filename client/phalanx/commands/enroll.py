"""``phalanx enroll``: makes a machine that is reached over ssh a worker, and takes it out again."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.commands import options
from phalanx.commands.problems import Problems
from phalanx.console import note, print_result
from phalanx_proto.execution import Backend
from phalanx_proto.experiment import DType
from phalanx_proto.ssh_options import conflicts

if TYPE_CHECKING:
    from phalanx.embedded import Enrolled, Removed

RECORD, PLACE = "The record", "The environment there"
Host = Annotated[
    str | None, typer.Argument(metavar="HOST", show_default=False, help="What ssh understands: an alias, or user@host.")
]
Into = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=RECORD, help="The cluster file; made if it is not there. (default: print it)"),
]
Name = Annotated[str | None, typer.Option(rich_help_panel=RECORD, help="The worker's alias. (default: from HOST)")]
Slots = Annotated[int | None, typer.Option(min=1, rich_help_panel=RECORD, help="CPU engines. (default: a conservative choice)")]
Device = Annotated[
    Backend | None, typer.Option("--backend", rich_help_panel=RECORD, help="What it computes on. (default: cpu)")
]
Precision = Annotated[
    DType | None, typer.Option("--dtype", rich_help_panel=RECORD, help="Precision of a new cluster file. (default: float64)")
]
SshOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ssh-option",
        metavar="WORD",
        rich_help_panel=RECORD,
        help="One word of ssh's command line; may be repeated: --ssh-option=-F --ssh-option=/path.",
    ),
]
Python = Annotated[
    str | None, typer.Option(metavar="PATH", rich_help_panel=PLACE, help="The Python to start from. (default: looked for)")
]
Directory = Annotated[
    str | None, typer.Option(metavar="DIR", rich_help_panel=PLACE, help="Where to make it. (default: ~/.local/share/phalanx)")
]
Offline = Annotated[
    bool, typer.Option("--offline", rich_help_panel=PLACE, help="That machine reaches no package index: send the wheels along.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Look at the machine, say what would be done, and change nothing.")]
Remove = Annotated[
    str | None, typer.Option(metavar="NAME", help="Remove what enroll made for this worker, there and in the cluster file.")
]


def enroll(
    host: Host = None, into: Into = None, name: Name = None, slots: Slots = None, backend: Device = None,
    dtype: Precision = None, ssh_option: SshOption = None, python: Python = None, directory: Directory = None,
    offline: Offline = False, dry_run: DryRun = False, remove: Remove = None, as_json: options.StatusJson = False,
    quiet: options.Quiet = False,
) -> None:  # fmt: skip
    """Install this very version on a machine that you reach over ssh, prove it by a handshake, and write its record.

    Never uses sudo, and says first what it will do. Repeated, it renews the environment and the same record.
    """
    from phalanx.embedded import Enrolment, enroll_machine, remove_machine

    _check(host, remove, into, ssh_option or [])

    def tell(text: str) -> None:
        note(text, quiet or as_json)

    if remove is not None and into is not None:
        removed = remove_machine(remove, into, tell, dry_run=dry_run)
        document = {
            "name": remove, "removed": removed.environment and not dry_run, "dry_run": dry_run, "steps": list(removed.steps),
            "last": removed.last,
        }  # fmt: skip
        print_result(document, _removal_summary(remove, into, removed, dry_run), as_json)
        return
    assert host is not None
    asked = Enrolment(
        host=host, name=name, slots=slots, backend=backend, into=into, python=python, directory=directory,
        ssh_options=tuple(ssh_option) if ssh_option else None, offline=offline, dtype=dtype, dry_run=dry_run,
    )  # fmt: skip
    found = enroll_machine(asked, tell)
    print_result(_document(found), _summary(found, dry_run), as_json)


def _dry_run(steps: Sequence[str]) -> str:
    """What would be done, in the words of the real thing."""
    return "\n".join([*(f"will {step}" for step in steps), "nothing was changed (--dry-run)"])


def _removal_summary(name: str, file: Path, removed: "Removed", dry_run: bool) -> str:
    if dry_run:
        text = _dry_run(removed.steps)
    elif removed.environment:
        text = f"{name}: its environment and its record are removed"
    else:
        text = f"{name}: its record is removed; there was no environment"
    if removed.last:
        will = "would have" if dry_run else "has"
        text += f"\n{file} {will} no worker left, which no run accepts: delete it, or enrol a machine into it"
    return text


def _check(host: str | None, remove: str | None, into: Path | None, ssh_option: Sequence[str]) -> None:
    problems = Problems()
    if host is not None and remove is not None:
        problems.add("--remove takes no HOST; the cluster file knows it: phalanx enroll --remove NAME --into FILE")
    elif host is None and remove is None:
        problems.add(
            "name a machine, as in: phalanx enroll HOST --into FILE; or a worker to take out: --remove NAME --into FILE"
        )
    if remove is not None and into is None:
        problems.add("--remove needs the cluster file that has the record: --into FILE")
    for option in ssh_option:
        first, blank, rest = option.partition(" ")
        if blank and len(first) == 2 and first[0] == "-":  # but -oProxyCommand=nc … is one word
            words = [first, rest.strip()] if first == "-o" else option.split()
            write = " ".join(shlex.quote(f"--ssh-option={word}") for word in words)
            problems.add(f"--ssh-option takes one word of ssh's command line, which {option!r:.80} is not; write {write}")
    for name in conflicts(ssh_option):
        problems.add(f"--ssh-option must not give {name}, for with it ssh does not run what it is asked to; leave it out")
    problems.settle()


def _document(found: "Enrolled") -> dict[str, object]:
    from phalanx.embedded import examination_document

    examination = None if found.examination is None else examination_document(found.examination)
    return {
        "name": found.record.name,
        "record": found.text,
        "steps": list(found.steps),
        "written": None if found.written is None else str(found.written),
        "examination": examination,
    }


def _summary(found: "Enrolled", dry_run: bool) -> str:
    name = found.record.name
    if dry_run:
        return _dry_run(found.steps)
    if found.written is not None:
        slots = f"{found.record.slots} slot{'s' if found.record.slots > 1 else ''}"
        return f"{name} can join: {slots} on {found.record.backend}. Its record is in {found.written}"
    return f"{found.text}\n{name} can join. Put the lines above into a cluster file, or name one with --into"
