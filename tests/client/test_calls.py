"""A watch goes on over a service that is started again, for as long as there is a way to it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx import calls as client_calls
from phalanx.calls import Calls
from phalanx.connection import Client
from phalanx_proto.errors import Unavailable
from phalanx_proto.job_status import JobStatus

RUNNING = JobStatus(job="night", kind="fit", state="RUNNING")
COMPLETE = JobStatus(job="night", kind="fit", state="COMPLETE")


class Way:
    """A tunnel that is there until it is said to be gone."""

    ended = False

    def why_lost(self) -> Unavailable:
        return Unavailable("channel 2: open failed")

    def close(self) -> None:
        self.ended = True


@pytest.fixture
def way() -> Way:
    return Way()


@pytest.fixture
def calls(way: Way, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Calls]:
    """Calls whose clock moves only when they sleep."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    found = Calls(tmp_path / "s", way)  # type: ignore[arg-type]
    yield found
    found.close()


def answers(calls: Calls, monkeypatch: pytest.MonkeyPatch, parts: list[Any]) -> None:
    def statuses(job: str) -> Iterator[JobStatus]:
        yield from parts.pop(0) if parts else ()
        raise Unavailable("channel 2: open failed")

    monkeypatch.setattr(calls, "_statuses", statuses)


def test_a_watch_waits_until_the_service_is_there_again(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[list[JobStatus]] = [[]] * 50
    answers(calls, monkeypatch, [[RUNNING], *gone, [RUNNING, COMPLETE]])
    seen = calls.watch("night")
    assert [next(seen), next(seen)] == [RUNNING, COMPLETE]


def test_a_watch_ends_when_patience_or_the_tunnel_does(calls: Calls, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(calls, monkeypatch, [[RUNNING]])
    seen = calls.watch("night")
    assert next(seen) == RUNNING
    with pytest.raises(Unavailable, match="open failed"):
        next(seen)
    assert client_calls.PATIENCE < time.monotonic() < client_calls.PATIENCE + 2
    way.ended, waited = True, time.monotonic()
    with pytest.raises(Unavailable, match="open failed"):
        next(calls.watch("night"))
    assert time.monotonic() == waited


def test_a_client_says_of_what(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "prove", lambda: None)
    assert repr(Client("ssh://atlas", calls, None)) == "<Client of ssh://atlas>"
