"""A job as it goes on: on a terminal a few lines that are drawn anew, else a line for what is worth one."""

import time
from typing import TextIO

from phalanx.commands import job_texts
from phalanx.job_handles import Job
from phalanx.progress import PLAIN_EVERY
from phalanx_proto.job_status import JobStatus
from phalanx_proto.jobs import Event


def watch(job: Job, stream: TextIO) -> None:
    """Show a job on ``stream`` until it has ended, and at the end its summary."""
    last = _on_terminal(job, stream) if stream.isatty() else _in_lines(job, stream)
    print(job_texts.summary(last), file=stream, flush=True)


def _in_lines(job: Job, stream: TextIO) -> JobStatus:
    """Each event, each change of state, and progress now and then."""
    told, due, events = "", 0.0, 0
    for status in job.watch():
        for found in _news(job, status, events):
            print(job_texts.event(found), file=stream, flush=True)
            events += 1
        now = time.monotonic()
        if status.state != told or now >= due:
            told, due = status.state, now + PLAIN_EVERY
            print(job_texts.line(status), file=stream, flush=True)
    return status


def _news(job: Job, status: JobStatus, events: int) -> list[Event]:
    """The events after the first so many; a killed coordinator may have counted fewer than it wrote."""
    over = status.ended or status.state == "COORDINATOR_OFFLINE"
    return job.events(events) if over or status.events > events else []


def _on_terminal(job: Job, stream: TextIO) -> JobStatus:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    events = 0
    with Live(console=Console(file=stream), transient=True, redirect_stdout=False) as live:
        for status in job.watch():
            for found in _news(job, status, events):
                live.console.print(Text(job_texts.event(found)))
                events += 1
            bar = ProgressBar(total=status.total, completed=status.done, width=60, pulse=status.total is None)
            live.update(Group(Text(job_texts.summary(status)), bar))
    return status
