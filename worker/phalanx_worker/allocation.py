"""How many CPU slots this process may use, and why: the smallest of what machine, system and scheduler say."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx_proto.errors import InvalidRequest, Unavailable

SCHEDULER_VARIABLES: Mapping[str, str] = {
    "SLURM_CPUS_PER_TASK": "Slurm",
    "SLURM_CPUS_ON_NODE": "Slurm",
    "PBS_NCPUS": "PBS",
    "NCPUS": "PBS",
    "LSB_DJOB_NUMPROC": "LSF",
    "NSLOTS": "Grid Engine",
}
"""Environment variables by which a batch scheduler tells a job its CPUs, and whose they are."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The CPU slots of this process; None is what was not found or cannot be known."""

    slots: int
    """Engines that may run side by side, at least 1."""
    reason: str
    """Which limit decided, in words."""
    logical_cpus: int | None
    affinity: int | None
    """CPUs this process may be scheduled on; None where the system has no such notion (macOS)."""
    cgroup_quota: float | None
    """CPUs by quota; None without one."""
    scheduler_limits: Mapping[str, int]
    """What a batch scheduler's variables say, by variable."""
    notes: tuple[str, ...] = ()


def affinity() -> int | None:
    """CPUs this process may be scheduled on; None on macOS, which has no affinity."""
    ask = getattr(os, "sched_getaffinity", None)
    return None if ask is None else len(ask(0))


def scheduler_limits(environment: Mapping[str, str]) -> tuple[dict[str, int], list[str]]:
    """The limits that batch schedulers state in ``environment``, and notes on those that cannot be read."""
    limits, notes = {}, []
    for name, scheduler in SCHEDULER_VARIABLES.items():
        text = environment.get(name, "").strip()
        if text.isdecimal() and int(text) > 0:
            limits[name] = int(text)
        elif text:
            notes.append(f"{name} ({scheduler}) is set but is not a positive number; it was not used")
    return limits, notes


def discover(
    *, logical_cpus: int | None, affinity: int | None, cgroup_quota: float | None, environment: Mapping[str, str]
) -> Allocation:
    """The allocation that these facts leave: their minimum, a quota rounded down, never less than 1."""
    limits, notes = scheduler_limits(environment)
    candidates: list[tuple[int, str]] = []
    if logical_cpus is not None:
        candidates.append((logical_cpus, f"the machine has {_count(logical_cpus, 'logical CPU')}"))
    if affinity is not None:
        candidates.append((affinity, f"the CPU affinity of this process holds {_count(affinity, 'CPU')}"))
    if cgroup_quota is not None:
        floor = max(1, math.floor(cgroup_quota))
        candidates.append((floor, f"the control group's quota is {cgroup_quota:g} CPUs"))
    candidates += [(n, f"{name}={n} ({SCHEDULER_VARIABLES[name]})") for name, n in limits.items()]
    unknown = (1, "the number of CPUs is unknown, so one slot is assumed")
    slots, reason = min(candidates, key=lambda candidate: candidate[0], default=unknown)
    return Allocation(
        slots=max(1, slots),
        reason=reason,
        logical_cpus=logical_cpus,
        affinity=affinity,
        cgroup_quota=cgroup_quota,
        scheduler_limits=limits,
        notes=tuple(notes + _notes(logical_cpus, affinity, cgroup_quota, environment)),
    )


def require_slots(asked: int, allocation: Allocation, who: str) -> None:
    """Pass if ``asked`` CPU slots fit the allocation. Nothing is ever clipped.

    Raises ``InvalidRequest`` for less than one, ``Unavailable`` (details asked, found, reason) for too many.
    """
    if asked < 1:
        raise InvalidRequest(f"{who}: asked for {asked} slots; at least 1 is needed")
    if asked > allocation.slots:
        raise Unavailable(
            f"{who}: asked for {_count(asked, 'slot')}, found {allocation.slots}, because {allocation.reason}; "
            f"ask for at most {allocation.slots} or change that limit",
            asked=asked,
            found=allocation.slots,
            reason=allocation.reason,
        )


def _notes(logical_cpus: int | None, affinity: int | None, quota: float | None, environment: Mapping[str, str]) -> list[str]:
    notes = []
    if logical_cpus is None:
        notes.append("the number of logical CPUs is unknown here")
    if affinity is None:
        notes.append("this system has no CPU affinity; other limits apply")
    if quota is not None and quota < 1:
        notes.append(f"the quota of {quota:g} CPUs is less than one; a single slot will be slowed down by it")
    threads = environment.get("OMP_NUM_THREADS", "").strip()
    if threads:
        notes.append(f"OMP_NUM_THREADS={threads} is set; it speaks of threads in a process and limits no slots")
    return notes


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
