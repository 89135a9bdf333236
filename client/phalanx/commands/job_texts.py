"""What a job is doing, in words and in columns."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from phalanx.progress import N_A, amount, duration
from phalanx_proto.job_status import JobStatus
from phalanx_proto.jobs import SETTING_UP, Event, MemberStatus

HEADS = ("job", "kind", "state", "done", "loss", "seconds", "directory")


def document(status: JobStatus, directory: Path | None = None) -> dict[str, Any]:
    """JSON values: the status, and where the job lies."""
    return {**status.to_document(), **({} if directory is None else {"directory": str(directory)})}


def shown_path(path: Path) -> str:
    """A path as a person would write it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def summary(status: JobStatus) -> str:
    """A few lines."""
    pid = "" if status.pid is None else f" (pid {status.pid})"
    lines = [f"job         {status.job} ({status.kind})", f"state       {status.state}{pid}"]
    if status.reason:
        lines.append(f"reason      {status.reason}")
    lines.append(f"progress    {progress(status)}")
    if status.epoch is not None:
        lines.append(f"epoch       {status.epoch}, {losses(status)}")
    lines.append(f"seconds     {status.seconds:.3f}")
    return "\n".join([*lines, *(f"member      {member(found)}" for found in status.members)])


def progress(status: JobStatus) -> str:
    """Done of total; where work goes on, also its phase, or its rate and the time that is left."""
    if status.total is None:
        return status.phase
    done = f"{amount(status.done)}/{amount(status.total)} {status.unit}"
    if status.pid is None:
        return done
    if status.phase in SETTING_UP:
        return f"{done}, {status.phase}"
    rate = N_A if status.rate is None else amount(status.rate)
    return f"{done}, {rate}/s, ETA {duration(status.eta)}"


def losses(status: JobStatus) -> str:
    """The losses that are known."""
    found = [("loss", status.loss), ("validation", status.validation_loss)]
    return ", ".join(f"{name} {value:.4g}" for name, value in found if value is not None) or f"loss {N_A}"


def member(found: MemberStatus) -> str:
    """One member's state, share and latency; a member that never computed has neither."""
    if found.state in ("starting", "ended") and found.rows is None:
        return f"{found.name}: {found.state}"
    rows = N_A if found.rows is None else f"{found.rows:,} rows"
    latency = N_A if found.latency is None else f"{found.latency * 1000:.1f} ms"
    reason = "" if found.reason is None else f": {found.reason}"
    return f"{found.name}: {found.state}, {rows}, latency {latency}{reason}"


def line(status: JobStatus) -> str:
    """One line, for those who watch without a terminal."""
    parts = [status.state, progress(status)]
    if status.epoch is not None:
        parts.append(losses(status))
    return ", ".join(parts) if status.reason is None else f"{', '.join(parts)}: {status.reason}"


def event(found: Event) -> str:
    """One line of a job's history."""
    update = "" if found.update is None else f" in update {found.update}"
    return " ".join(filter(None, (found.kind, found.member))) + update + (f": {found.reason}" if found.reason else "")


def table(jobs: Iterable[tuple[Path, JobStatus]]) -> str:
    """A line a job."""
    rows: list[Sequence[str]] = [HEADS]
    for directory, status in jobs:
        loss = N_A if status.loss is None else f"{status.loss:.4g}"
        done = N_A if status.total is None else f"{amount(status.done)}/{amount(status.total)}"
        rows.append((status.job, status.kind, status.state, done, loss, f"{status.seconds:.1f}", shown_path(directory)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
