"""What a job is doing, as one value: ``status.json`` holds the last one that its coordinator confirmed.

A status on disk tells what was; whether anybody still works on the job is known from its lock alone. ``seen`` puts the two
together, afresh each time.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from phalanx_proto.errors import CorruptData
from phalanx_proto.jobs import MemberStatus, Progress
from phalanx_proto.plain_values import plain_types, shown
from phalanx_proto.result import finite

State = Literal["QUEUED", "RUNNING", "CANCELLING", "COMPLETE", "FAILED", "CANCELLED", "COORDINATOR_OFFLINE"]
STATES: tuple[str, ...] = get_args(State)
WAITING = "waiting"
"""The phase of a job in the queue of a service; if that service goes, the next one takes the job up."""
ENDED: tuple[State, ...] = ("COMPLETE", "FAILED", "CANCELLED")
"""Nobody works on it, and nobody claims to."""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """One job at one moment; None is what is not known, or does not apply."""

    job: str
    """Its name: that of its directory."""
    kind: str
    """``fit`` or ``simulation``."""
    state: State
    pid: int | None = None
    """Of the live coordinator; None while it is QUEUED."""
    reason: str | None = None
    """Why it ended without a result, or what it waits for."""
    error: str | None = None
    """Class of the error that ended it."""
    phase: str = "starting"
    update: int | None = None
    """Committed updates, of a fit."""
    updates: int | None = None
    """Updates of the whole fit."""
    epoch: int | None = None
    """The last epoch that is complete."""
    loss: float | None = None
    """Mean training loss of that epoch."""
    validation_loss: float | None = None
    done: int = 0
    """Completed work in ``unit``: updates or samples."""
    total: int | None = None
    unit: str = "updates"
    seconds: float = 0.0
    """Seconds of work on it, all attempts together."""
    rate: float | None = None
    """Units a second, of this attempt, over its last seconds."""
    eta: float | None = None
    """Seconds to the end at that rate."""
    attempts: int = 0
    """How many coordinators have begun to work on it."""
    events: int = 0
    """Lines of ``events.jsonl`` so far."""
    members: tuple[MemberStatus, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether nobody works on it, and nobody claims to."""
        return self.state in ENDED

    def to_document(self) -> dict[str, Any]:
        """JSON values, read by ``from_document``."""
        return dataclasses.asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "JobStatus":
        """The value that ``to_document`` took apart; fields of other versions are left out. Raises ``CorruptData``."""
        try:
            values = {name: value for name, value in document.items() if name in _NAMES}
            values["members"] = tuple(MemberStatus(**_sound(_MEMBER, member)) for member in values.get("members") or ())
            found = cls(**_sound(_JOB, values))
        except (TypeError, AttributeError, KeyError, ValueError):
            raise CorruptData("the status cannot be read") from None
        if found.state not in STATES:
            raise CorruptData(f"the status has no known state, but {found.state!r:.40}")
        return found

    def told(self, progress: Progress) -> "JobStatus":
        """The status after a report of progress, without times."""
        fit = progress.unit == "updates"
        return dataclasses.replace(
            self, phase=progress.phase, done=progress.done, total=progress.total or None, unit=progress.unit,
            update=progress.done if fit else None, updates=(progress.total or None) if fit else None,
            epoch=progress.epoch, loss=finite(progress.loss), validation_loss=finite(progress.validation_loss),
            members=progress.members or self.members,
        )  # fmt: skip


def members_ended(members: Iterable[MemberStatus]) -> tuple[MemberStatus, ...]:
    """The members of a job that nobody works on any more: who was lost or refused stays so, all others have ended."""
    return tuple(
        member if member.state in ("lost", "refused") else dataclasses.replace(member, state="ended", reason=None)
        for member in members
    )


def _sound(kinds: Mapping[str, frozenset[type]], values: dict[str, Any]) -> dict[str, Any]:
    """The values, if each is one that its field can have: no text that cannot be shown, no number below 0 or without end."""
    for name, value in values.items():
        kind = type(value)
        if (
            kind not in kinds[name]
            or (kind is int and not 0 <= value < (1 << 31 if name == "attempts" else 1 << 63))
            or (kind is float and not math.isfinite(value))
        ):
            raise CorruptData(f"its {name} cannot be {shown(value)}")
        if kind is str:
            value.encode()
    return values


_JOB = {field.name: plain_types(field.type) for field in dataclasses.fields(JobStatus) if field.name != "members"}
_JOB["members"] = frozenset({tuple})
_MEMBER = {field.name: plain_types(field.type) for field in dataclasses.fields(MemberStatus)}
_NAMES = frozenset(field.name for field in dataclasses.fields(JobStatus))


def seen(confirmed: JobStatus, live: int | None) -> JobStatus:
    """What a reader may say: the last confirmed status, and the process ``live`` that holds the job's lock, if any does.

    A status that claims work which nobody does is COORDINATOR_OFFLINE: its members end with their coordinator, and all else
    in it is the last confirmed snapshot. One that waited in the queue of a service waits on, for the next service.
    """
    if live is not None:
        return dataclasses.replace(confirmed, pid=None if confirmed.state == "QUEUED" else live)
    if confirmed.state == "QUEUED" and confirmed.phase == WAITING:
        return dataclasses.replace(
            confirmed, pid=None, reason="it waits for a service, since the one that it was submitted to is gone: start that "
            "one again with phalanx serve, or run the job without one with phalanx resume",
        )  # fmt: skip
    if confirmed.ended and confirmed.pid is None and confirmed.eta is None:
        return confirmed
    if confirmed.ended:
        return dataclasses.replace(confirmed, pid=None, eta=None)
    return dataclasses.replace(
        confirmed, state="COORDINATOR_OFFLINE", pid=None, eta=None, rate=None,
        members=members_ended(confirmed.members),
        reason=f"its coordinator is gone, and it did not say why; the last that is known is {confirmed.state} "
        f"in the phase {confirmed.phase}; phalanx resume goes on from there",
    )  # fmt: skip
