"""``phalanx resume``: a job goes on where it was, here or elsewhere."""

import sys

from phalanx.background import resume as resume_here
from phalanx.commands import options
from phalanx.commands.finding import find_job
from phalanx.commands.placement import execution
from phalanx.commands.submission import announce
from phalanx.console import note, print_result
from phalanx.progress import shown
from phalanx_proto.execution import Execution


def resume(
    job: options.Job,
    workers: options.Workers = None,
    device: options.Device = None,
    dtype: options.Precision = None,
    cluster: options.Cluster = None,
    background: options.Background = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Go on with a job that was cancelled, has failed or lost its coordinator; without options in the same place."""
    found = find_job(job)
    given = (workers, device, dtype, cluster)
    where: Execution | None = None
    if any(option is not None for option in given):
        where = execution(workers=workers, cluster=cluster, device=device, dtype=dtype)
    if found.status().state == "COMPLETE":
        note(f"job {found.id} is complete; this is its result", quiet)
    elif background:
        announce(found.resume(where), as_json)
        return
    with shown(quiet, sys.stderr) as listener:
        result = resume_here(found.directory, where, progress=listener)
    print_result(result.document(), result.summary(), as_json)
