"""What a piece of work cost. None stands for what was not measured, never 0."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Times in nanoseconds, memory in bytes."""

    rows: int = 0
    prepare_ns: int | None = None
    compute_ns: int | None = None
    readback_ns: int | None = None
    total_ns: int | None = None
    resident: int | None = None
    """Resident memory of the process that did it."""
