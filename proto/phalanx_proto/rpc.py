"""gRPC as all of us load it: ``from phalanx_proto.rpc import aio, grpc``, before anything else that imports it.

In recent releases gRPC's EventEngine moves the bytes of Python's channels too. It hands every message through more threads, and
everything takes half as long again, small messages and large (docs/decisions/013). gRPC reads which of its experiments are on
when it is loaded, and from the environment only; so the environment says it for that moment. Where a program has loaded gRPC
before us, or has a choice of its own there, that stands: all is the same, but slower.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from phalanx_proto.installed import library_knows

VARIABLE = "GRPC_EXPERIMENTS"
UNWANTED = ("event_engine_client", "event_engine_listener")


@contextlib.contextmanager
def _chosen() -> Iterator[None]:
    known = all(library_knows("grpc", "_cython/cygrpc*.so", name) for name in UNWANTED)
    if not known or VARIABLE in os.environ:  # gRPC complains of names that it does not know
        yield
        return
    os.environ[VARIABLE] = ",".join(f"-{name}" for name in UNWANTED)
    try:
        yield
    finally:
        del os.environ[VARIABLE]


with _chosen():
    import grpc
    import grpc.aio

aio: Any = grpc.aio
"""Untyped: the published stubs of grpc.aio are incomplete."""

__all__ = ["aio", "grpc"]
