"""Whose turn it is: jobs start in the order they came, as soon as the slots they need are free. Pure.

A small job does not overtake a large one that waits, so nobody waits for ever; and whoever waits is told for what.
"""

from dataclasses import dataclass

from phalanx_proto.errors import Unavailable

MAX_WAITING = 200
"""Jobs in the queue; each one holds its directory open."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """The job's turn has come."""

    job: str


@dataclass(frozen=True, kw_only=True)
class Wait:
    """The job waits, and for this."""

    job: str
    reason: str


class Scheduler:
    """The queue, and who uses how many of the ``slots``."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._waiting: dict[str, int] = {}
        self._running: dict[str, int] = {}

    @property
    def in_use(self) -> int:
        """Slots of the jobs that run."""
        return sum(self._running.values())

    @property
    def running(self) -> list[str]:
        """The jobs that run."""
        return list(self._running)

    def check(self, slots: int) -> None:
        """Pass if a job of so many slots can ever run here, and may queue now; raises ``Unavailable``."""
        if slots > self.slots:
            raise Unavailable(
                f"the job needs {slots} CPU slots, and this service may use {self.slots}; ask for fewer workers, or serve with "
                f"--slots {slots}"
            )
        if len(self._waiting) >= MAX_WAITING:
            raise Unavailable(f"{MAX_WAITING} jobs are waiting already; submit again when some of them have ended")

    def submit(self, job: str, slots: int) -> None:
        """Queue a job; raises ``Unavailable``, as ``check`` does."""
        self.check(slots)
        self._waiting[job] = slots

    def adopt(self, job: str, slots: int) -> None:
        """A job runs already, whoever started it."""
        self._running[job] = slots

    def ended(self, job: str) -> None:
        """A job has left its slots, or the queue."""
        self._running.pop(job, None)
        self._waiting.pop(job, None)

    def is_waiting(self, job: str) -> bool:
        """Whether the job is in the queue."""
        return job in self._waiting

    def decide(self) -> list[Start | Wait]:
        """Who starts now, and what each of the others waits for, in the order of the queue."""
        decisions: list[Start | Wait] = []
        ahead: str | None = None
        for job, slots in list(self._waiting.items()):
            free = self.slots - self.in_use
            if ahead is None and slots <= free:
                del self._waiting[job]
                self._running[job] = slots
                decisions.append(Start(job=job))
                continue
            reason = self._shortage(slots, free) if ahead is None else f"waits for its turn after {ahead}"
            decisions.append(Wait(job=job, reason=reason))
            ahead = job
        return decisions

    def _shortage(self, slots: int, free: int) -> str:
        users = ", ".join(f"{job} {used}" for job, used in self._running.items())
        return f"waits for {slots} of {self.slots} CPU slots, of which {max(free, 0)} are free (in use: {users})"
