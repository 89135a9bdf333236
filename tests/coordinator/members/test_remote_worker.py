"""What a failed call becomes: one of our errors, which names the worker and what is known of its end."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from phalanx_coordinator.members import remote_worker as remote
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.members.timing import Deadlines
from phalanx_proto import errors
from phalanx_proto.errors import METADATA_KEY, CorruptData, OutOfTime, PhalanxError, StaleIncarnation, Unauthorized, WorkerLost

GONE = WorkerLost("worker b was ended by SIGKILL", worker="b")


def translated(
    code: grpc.StatusCode, metadata: tuple[tuple[str, bytes], ...] = (), lost: WorkerLost | None = None
) -> PhalanxError:
    async def story() -> PhalanxError:
        future: asyncio.Future[WorkerLost] = asyncio.get_running_loop().create_future()
        closed: list[bool] = []

        async def close() -> None:
            closed.append(True)

        process: Any = SimpleNamespace(
            name="b", record=SimpleNamespace(here=True), socket="/nowhere.sock", lost=future, close=close
        )
        worker = RemoteWorker(process, "t" * 32, "run", 1, Deadlines())
        if lost is not None:
            asyncio.get_running_loop().call_later(0.01, future.set_result, lost)
        failed = SimpleNamespace(code=lambda: code, details=lambda: "the details", trailing_metadata=lambda: metadata)
        try:
            return await worker._translated(failed)
        finally:
            await worker.close()

    return asyncio.run(story())


@pytest.mark.parametrize("code", ["UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED"])
def test_a_worker_that_went_is_the_reason_whatever_the_status_says(code: str) -> None:
    assert translated(grpc.StatusCode[code], lost=GONE) is GONE


def test_what_the_worker_said_itself_comes_first() -> None:
    said = errors.to_wire(StaleIncarnation("this is incarnation 2, not 1", wanted=2))
    found = translated(grpc.StatusCode.ABORTED, ((METADATA_KEY, said),), lost=GONE)
    assert isinstance(found, StaleIncarnation)
    assert found.message == "worker b: this is incarnation 2, not 1"
    assert found.details == {"wanted": 2}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UNAUTHENTICATED", Unauthorized),
        ("DEADLINE_EXCEEDED", OutOfTime),
        ("UNAVAILABLE", WorkerLost),
        ("INTERNAL", PhalanxError),
    ],
)
def test_a_bare_status_becomes_its_error(monkeypatch: pytest.MonkeyPatch, code: str, kind: type[PhalanxError]) -> None:
    monkeypatch.setattr(remote, "NEWS", 0.05)
    found = translated(grpc.StatusCode[code])
    assert type(found) is kind
    assert found.message == f"worker b: {code}: the details"
    assert found.details == {"worker": "b"}


def test_bytes_that_are_no_message_are_corrupt() -> None:
    async def story() -> None:
        process: Any = SimpleNamespace(
            name="b", record=SimpleNamespace(here=True), socket="/nowhere.sock", lost=asyncio.get_running_loop().create_future()
        )
        worker = RemoteWorker(process, "t" * 32, "run", 1, Deadlines())

        async def unreadable() -> None:
            """What gRPC makes of them."""

        try:
            with pytest.raises(CorruptData, match="worker b sent bytes that are no message"):
                await worker._answer(unreadable())
        finally:
            await worker._channel.close()

    asyncio.run(story())
