"""The gRPC edge of a coordinator service, without a server: what nobody foresaw becomes a plain answer."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import grpc
import pytest

from phalanx_coordinator.service.service import CoordinatorServicer
from phalanx_proto.v1 import coordinator_service_pb2 as messages


class Aborted(Exception):
    """The call has ended so."""


class Context:
    async def abort(self, code: grpc.StatusCode, text: str, trailing_metadata: Any) -> None:
        raise Aborted(code, text)


class Keeper:
    """Fails in a way that no one has thought of."""

    def path(self, job: str) -> None:
        raise OSError(f"/home/ada/{job}")

    jobs = status = path


async def unary(servicer: CoordinatorServicer) -> None:
    await servicer.GetStatus(messages.GetStatusRequest(job="x"), Context())


async def streaming(servicer: CoordinatorServicer) -> None:
    async for _ in servicer.Watch(messages.WatchRequest(job="x"), Context()):
        pass


@pytest.mark.parametrize("call", [unary, streaming])
def test_what_nobody_foresaw_is_told_plainly_and_on_the_terminal(
    call: Callable[[CoordinatorServicer], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    servicer = CoordinatorServicer(cast(Any, Keeper()), cast(Any, None), cast(Any, None))
    with pytest.raises(Aborted) as ended:
        asyncio.run(call(servicer))
    code, text = ended.value.args
    assert code == grpc.StatusCode.INTERNAL
    assert "met a fault of its own (OSError)" in text and "/home/ada" not in text
    assert "OSError: /home/ada/x" in capsys.readouterr().err
