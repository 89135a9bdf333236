"""How a gRPC service of ours answers: who calls is checked first, and every error crosses as itself."""

import sys
import traceback
from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar

from phalanx_proto.rpc import aio, grpc

from phalanx_proto import errors
from phalanx_proto.errors import PhalanxError

Context = Any
Method = TypeVar("Method", bound=Callable[..., Any])
OPTIONS = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    # pings are welcome at any time: a caller's keepalive is what notices a frozen peer
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)
"""Of a server."""


async def refuse(context: Context, error: PhalanxError) -> NoReturn:
    """End the call with the error's status; its details go into the trailing metadata, what is private to our own log."""
    if error.private:
        print(error.private, file=sys.stderr, flush=True)
    code = grpc.StatusCode[errors.status_of(error)]
    await context.abort(code, error.message[: errors.LONGEST_STATUS], trailing_metadata=errors.trailing(error))
    raise AssertionError("abort returned")


def unary(method: Method) -> Method:
    """For a method with one answer, of a servicer with ``authorize(context)``, which raises for a caller who may not."""

    @wraps(method)
    async def guarded(self: Any, request: Any, context: Context) -> Any:
        try:
            self.authorize(context)
            return await method(self, request, context)
        except Exception as error:
            await refuse(context, _told(method.__name__, error))

    return guarded  # type: ignore[return-value]


def streaming(method: Method) -> Method:
    """The same for a method with any number of answers."""

    @wraps(method)
    async def guarded(self: Any, request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            self.authorize(context)
            async for response in method(self, request, context):
                yield response
        except Exception as error:
            await refuse(context, _told(method.__name__, error))

    return guarded  # type: ignore[return-value]


def _told(name: str, error: Exception) -> PhalanxError:
    """The error itself; of what nobody foresaw, the text may hold what is not public, so only our own log shows it."""
    if isinstance(error, PhalanxError):
        return error
    if isinstance(error, aio.AbortError):  # somebody has answered already
        raise error
    lines = "".join(traceback.format_exception(error, limit=-20))
    return PhalanxError(
        f"{name} met a fault of its own ({type(error).__name__}), of which the log over there tells more; other calls go on",
        private=lines,
    )
