"""What ``--background`` needs and says."""

from pathlib import Path

from phalanx.commands import job_texts
from phalanx.console import print_result
from phalanx.job_handles import DirectoryJob
from phalanx_proto.errors import InvalidRequest


def directory_of(output: Path | None) -> Path:
    """The directory of a job in the background; raises ``InvalidRequest`` without one."""
    if output is None:
        raise InvalidRequest("--background needs --output DIR: a new directory, by which the job is found again")
    return output


def announce(job: DirectoryJob, as_json: bool) -> None:
    """Say where the job is, and how to ask for it."""
    status = job.status()
    path = job_texts.shown_path(job.directory)
    lines = [f"directory   {path}", job_texts.summary(status), f"next        phalanx status --watch --job {path}"]
    print_result(job_texts.document(status, job.directory), "\n".join(lines), as_json)
