"""``phalanx cancel``: a job is ended, with proof."""

from phalanx.commands import job_texts, options
from phalanx.commands.finding import find_job
from phalanx.console import note, print_result


def cancel(job: options.Job, as_json: options.StatusJson = False) -> None:
    """End a job, and say so when no process of it is left. What was accepted is kept in its directory, but is no result."""
    found = find_job(job)
    before = found.status()
    if before.ended:
        note(f"job {found.id} has ended already; there is nothing to cancel", as_json)
    after = before if before.ended else found.cancel()
    print_result(job_texts.document(after, found.directory), job_texts.summary(after), as_json)
