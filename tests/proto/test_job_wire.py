"""Statuses and events survive the wire, and what is not known stays unknown."""

import dataclasses

import pytest

from phalanx_proto import job_wire
from phalanx_proto.errors import CorruptData
from phalanx_proto.job_status import WAITING, JobStatus, seen
from phalanx_proto.jobs import Event, MemberStatus, Progress
from phalanx_proto.v1 import coordinator_service_pb2 as messages

FULL = JobStatus(
    job="night", kind="fit", state="RUNNING", pid=7, reason="because", error="WorkerLost", phase="updates", update=3, updates=9,
    epoch=0, loss=0.25, validation_loss=0.5, done=3, total=9, unit="updates", seconds=1.5, rate=2.0, eta=3.0, attempts=2,
    events=4, members=(MemberStatus(name="a", state="computing", rows=12, latency=0.5), MemberStatus(name="b", state="lost")),
)  # fmt: skip
BARE = JobStatus(job="night", kind="simulation", state="QUEUED")


@pytest.mark.parametrize("status", [FULL, BARE])
def test_a_status_comes_back(status: JobStatus) -> None:
    sent = messages.JobStatus.FromString(job_wire.status_message(status).SerializeToString())
    assert job_wire.status(sent) == status
    assert JobStatus.from_document(status.to_document()) == status


def test_every_field_of_a_status_travels() -> None:
    assert {field.name for field in dataclasses.fields(JobStatus)} == set(messages.JobStatus.DESCRIPTOR.fields_by_name)
    assert {field.name for field in dataclasses.fields(MemberStatus)} == set(messages.MemberStatus.DESCRIPTOR.fields_by_name)
    known = {field.name for field in dataclasses.fields(Event)} | {"number"}
    assert known == set(messages.JobEvent.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize(
    "event", [Event(time=1.5, kind="lost", member="b", update=0, reason="gone"), Event(time=2.0, kind="started")]
)
def test_an_event_comes_back(event: Event) -> None:
    message = job_wire.event_message(5, event)
    assert (message.number, job_wire.event(message)) == (5, event)


def test_a_status_of_another_version_is_read_as_far_as_it_is_known() -> None:
    assert JobStatus.from_document({**BARE.to_document(), "novel": 1}) == BARE
    with pytest.raises(CorruptData, match="no known state, but 'DREAMING'"):
        JobStatus.from_document({**BARE.to_document(), "state": "DREAMING"})
    with pytest.raises(CorruptData, match="cannot be read"):
        JobStatus.from_document({"state": "QUEUED"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("done", -1), ("done", None), ("done", 1.5), ("done", True), ("done", 1 << 64), ("total", "x"), ("eta", float("nan")),
        ("seconds", None), ("reason", 7), ("reason", "\ud800"), ("phase", []), ("members", 7), ("members", ["a"]),
        ("members", [{"name": "a", "state": "lost", "rows": -1}]), ("members", [{"name": "a", "state": None}]),
        ("members", [{"name": "a", "state": "lost", "novel": 1}]), ("state", ["QUEUED"]), ("kind", None),
    ],
)  # fmt: skip
def test_a_value_that_no_status_has_is_damage(name: str, value: object) -> None:
    with pytest.raises(CorruptData):
        JobStatus.from_document({**FULL.to_document(), name: value})


def test_a_text_in_any_language_is_none() -> None:
    status = dataclasses.replace(FULL, reason="wartet – 待")
    assert JobStatus.from_document(status.to_document()) == status


@pytest.mark.parametrize("state", ["QUEUED", "RUNNING", "CANCELLING"])
def test_work_that_nobody_does_is_offline(state: str) -> None:
    claimed = dataclasses.replace(FULL, state=state)  # type: ignore[arg-type]
    assert seen(claimed, 8) == dataclasses.replace(claimed, pid=None if state == "QUEUED" else 8)
    found = seen(claimed, None)
    assert (found.state, found.pid, found.eta, found.rate, found.update) == ("COORDINATOR_OFFLINE", None, None, None, 3)
    assert f"the last that is known is {state}" in str(found.reason)
    assert [(member.name, member.state, member.rows) for member in found.members] == [("a", "ended", 12), ("b", "lost", None)]


def test_a_job_in_the_queue_of_a_service_that_is_gone_waits_on() -> None:
    waiting = dataclasses.replace(BARE, phase=WAITING, reason="waits for its turn")
    assert seen(waiting, 8) == waiting
    found = seen(waiting, None)
    assert (found.state, found.pid) == ("QUEUED", None)
    assert "start that one again with phalanx serve" in str(found.reason)


def test_what_has_ended_needs_nobody() -> None:
    ended = dataclasses.replace(FULL, state="FAILED")
    assert seen(ended, None) == dataclasses.replace(ended, pid=None, eta=None)


def test_progress_of_a_simulation_has_no_updates() -> None:
    found = BARE.told(Progress(phase="samples", done=5, total=10, unit="samples", loss=float("nan")))
    assert (found.done, found.total, found.update, found.updates, found.loss) == (5, 10, None, None, None)
