"""Between the messages of ``coordinator_service.proto`` and the values behind them."""

from dataclasses import fields
from typing import Any, cast

from phalanx_proto.job_status import JobStatus, State
from phalanx_proto.jobs import Event, EventKind, MemberStatus
from phalanx_proto.v1 import coordinator_service_pb2 as messages


def status_message(status: JobStatus) -> messages.JobStatus:
    """The message of a status; what is not known stays absent."""
    members = [messages.MemberStatus(**_present(member)) for member in status.members]
    return messages.JobStatus(**{**_present(status), "members": members})


def status(message: messages.JobStatus) -> JobStatus:
    """The value of a status message."""
    values = {field.name: _value(message, field.name) for field in fields(JobStatus) if field.name != "members"}
    members = tuple(
        MemberStatus(**{field.name: _value(member, field.name) for field in fields(MemberStatus)}) for member in message.members
    )
    return JobStatus(**{**values, "state": cast(State, message.state), "members": members})


def event_message(number: int, event: Event) -> messages.JobEvent:
    """The message of an event."""
    return messages.JobEvent(number=number, **_present(event))


def event(message: messages.JobEvent) -> Event:
    """The value of an event message."""
    return Event(
        time=message.time, kind=cast(EventKind, message.kind), member=_value(message, "member"),
        update=_value(message, "update"), reason=message.reason,
    )  # fmt: skip


def _present(value: Any) -> dict[str, Any]:
    return {field.name: found for field in fields(value) if (found := getattr(value, field.name)) is not None}


def _value(message: Any, name: str) -> Any:
    optional = message.DESCRIPTOR.fields_by_name[name].has_presence
    return getattr(message, name) if not optional or message.HasField(name) else None
