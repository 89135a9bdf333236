"""The job that ``--job`` names: its directory, or the name by which ``phalanx jobs`` lists it."""

import shlex
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from phalanx.background import job as job_of
from phalanx.commands.job_texts import shown_path
from phalanx.job_handles import DirectoryJob
from phalanx_proto import job_registry
from phalanx_proto.errors import InvalidJob, InvalidRequest


def find_job(named: Path) -> DirectoryJob:
    """The job of a directory, or where there is none of that name, the one job of yours that has it.

    Raises ``InvalidJob``, with the candidates where there are several.
    """
    if named.exists() or len(named.parts) != 1:
        return job_of(named)
    found = [directory for directory in job_registry.known() if directory.name == named.name]
    if len(found) > 1:
        listed = "".join(f"\n    --job {shlex.quote(shown_path(directory))}" for directory in found)
        raise InvalidJob(f"{len(found)} jobs have the name {named}; say which one:{listed}")
    return job_of(found[0] if found else named)


class JobCommand(TyperCommand):
    """A command about one job, which helps who names the job without ``--job``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words; raises ``InvalidRequest`` with what was probably meant."""
        if not any(word == "--job" or word.startswith("--job=") for word in args):
            words = [word for word in args if not word.startswith("-")]
            meant = args[:1] if args[:1] == words[:1] else [word for word in words if Path(word).is_dir()]
            if meant:
                raise InvalidRequest(f"no option --job; did you mean --job {shlex.quote(meant[0])}?")
        return super().parse_args(ctx, args)
