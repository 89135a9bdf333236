"""How long and how wide the way to a worker is, measured with its ``Probe`` stream: the kind of call that an update is."""

import asyncio
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_proto.errors import OutOfTime

WARM_UP, LEAST, MOST = 5, 5, 200
"""Round trips that are not counted, and how many are."""
ROUND_TRIP_SECONDS = 1.5
"""After this no further round trip is begun."""
SMALL = 64
"""Bytes each way of a round trip."""
FIRST, LARGEST = 64 << 10, 64 << 20
"""Bytes of the first and the largest transfer."""
LONG_ENOUGH = 0.25
"""Seconds of a transfer that is long enough to judge the bandwidth by."""
PIECE = 1 << 20
"""Bytes of one message."""
DEADLINE = 30.0
"""Seconds for the whole measurement."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """What was measured between the coordinator and one worker."""

    round_trip_median: float
    """Seconds."""
    round_trip_p95: float
    round_trips: int
    """How many were measured."""
    up: float
    """Bytes a second to the worker."""
    down: float
    """Bytes a second from it."""


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of ``values`` that is not below ``share`` of them."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def next_size(size: int, seconds: float) -> int | None:
    """The next, larger transfer after one of ``size`` bytes took ``seconds``; None if that one was good enough."""
    if seconds >= LONG_ENOUGH or size >= LARGEST:
        return None
    growth = min(8.0, max(2.0, 1.5 * LONG_ENOUGH / max(seconds, 1e-9)))
    return min(LARGEST, int(size * growth))


def rate(size: int, seconds: float, round_trip: float) -> float:
    """Bytes a second of a transfer that also took one round trip; at most half of its time is taken for that."""
    return size / max(seconds - round_trip, seconds / 2, 1e-9)


async def measure(worker: RemoteWorker) -> Link:
    """Measure the way to ``worker``: some seconds, however slow it is. Raises what the worker's calls raise."""
    stream = worker.probing()
    try:
        async with asyncio.timeout(DEADLINE):
            times = await _round_trips(worker, stream)
            median = quantile(times, 0.5)
            up = await _transfers(worker, stream, median, upwards=True)
            down = await _transfers(worker, stream, median, upwards=False)
    except TimeoutError:
        raise OutOfTime(f"worker {worker.name}: its link could not be measured within {DEADLINE:.0f} s") from None
    finally:
        stream.cancel()
    return Link(
        round_trip_median=median, round_trip_p95=quantile(times, 0.95), round_trips=len(times), up=up, down=down
    )  # fmt: skip


async def _round_trips(worker: RemoteWorker, stream: Any) -> list[float]:
    times: list[float] = []
    data, begun = bytes(SMALL), time.perf_counter()
    for number in range(WARM_UP + MOST):
        started = time.perf_counter()
        if number >= WARM_UP + LEAST and started - begun > ROUND_TRIP_SECONDS:
            break
        await worker.probe(stream, data, SMALL)
        times.append(time.perf_counter() - started)
    return times[WARM_UP:]


async def _transfers(worker: RemoteWorker, stream: Any, round_trip: float, *, upwards: bool) -> float:
    size: int | None = FIRST
    found = 0.0
    piece = os.urandom(PIECE) if upwards else b""
    while size is not None:
        started = time.perf_counter()
        if upwards:
            await _send(worker, stream, piece, size)
        else:
            await worker.probe(stream, b"", size)
        seconds = time.perf_counter() - started
        found = rate(size, seconds, round_trip)
        size = next_size(size, seconds)
    return found


async def _send(worker: RemoteWorker, stream: Any, piece: bytes, size: int) -> None:
    while size > len(piece):
        await worker.probe(stream, piece, None)
        size -= len(piece)
    await worker.probe(stream, piece[:size], 0)
