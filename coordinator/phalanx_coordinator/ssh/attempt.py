"""One attempt to run a worker, and what can come of it. Values only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.ssh.config import Destination
from phalanx_proto.errors import PhalanxError, Unavailable, WorkerLost

FailureKind = Literal[
    "changed_key", "unknown_key", "refused_key", "no_host", "connection_refused", "timed_out", "no_route", "closed_early",
    "bad_configuration", "no_executable", "not_executable", "old_python", "not_phalanx", "incomplete", "no_login",
    "forward_refused", "tunnel_stalled", "tunnel_broken", "ended", "late", "silent", "not_ready", "noisy_profile",
]  # fmt: skip

NOTICED = "noticed at"
"""In the private part of an error these words follow the next step, and stand before the time and the last words."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What is known of one process that ended, or that did not bring its worker up in time."""

    record: WorkerRecord
    status: int | None
    """Exit status as ``subprocess`` gives it; None while it is there."""
    lines: Sequence[str] = ()
    """Its standard error, and that of what ran over there."""
    said: Sequence[str] = ()
    """What came on standard output that was not the worker's."""
    ready: bool = False
    """Whether the worker had been ready."""
    late: float | None = None
    """Seconds that it was given to be ready, where they have passed."""
    destination: Destination | None = None
    platform: str = "linux"
    """``sys.platform`` of this machine."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One thing that went wrong."""

    kind: FailureKind
    what: str
    """Public; follows the worker's name."""
    step: str = ""
    """Private: what the person can do next, with the exact command."""
    lost: bool = False
    """Whether a worker that had been there is gone, rather than one that could not join."""

    def error(self, worker: str, private: str) -> PhalanxError:
        """The error to raise."""
        kind = WorkerLost if self.lost else Unavailable
        return kind(f"worker {worker} {self.what}", private=private, worker=worker, failure=self.kind)
