"""Who is waited for at a start. The clock is virtual."""

import asyncio
from collections.abc import Mapping

from phalanx_coordinator.members.starting import Patience, start_side_by_side
from phalanx_coordinator.members.timing import Deadlines
from phalanx_proto.errors import PhalanxError, Unavailable
from tests.faults import virtual_time


def started(seconds: Mapping[str, float], engines: float | None = None, kept: bool = False) -> tuple[list[str], float]:
    """Who is absent, and when the start is over, where each member takes so many seconds; negative ones fail."""

    async def start(name: str, takes: float) -> None:
        await asyncio.sleep(abs(takes))
        if takes < 0:
            raise Unavailable(f"worker {name} cannot be reached")

    async def story() -> tuple[dict[str, PhalanxError], float]:
        here, loop = asyncio.Event(), asyncio.get_running_loop()
        if engines is not None:
            loop.call_later(engines, here.set)
        patience = Patience(deadlines=Deadlines(stragglers=5.0, daemons=15.0))
        if kept:
            patience.ready(0.0, remote=True)
        began = loop.time()
        absent = await start_side_by_side({name: start(name, takes) for name, takes in seconds.items()}, patience, here)
        assert len(asyncio.all_tasks()) == 1
        return absent, loop.time() - began

    absent, took = virtual_time.run(story())
    assert all(name in error.message for name, error in absent.items())
    return sorted(absent), round(took, 3)


def test_all_that_are_ready_soon_are_there() -> None:
    assert started({"a": 1, "b": 2}) == ([], 2)
    assert started({}) == ([], 0)


def test_one_that_hangs_holds_nobody_up() -> None:
    assert started({"a": 1, "b": 1000}) == (["b"], 6)
    assert started({"a": 1, "b": 20, "c": 8}) == (["b", "c"], 6)
    assert started({"a": 20, "b": 39, "c": 1000}) == (["c"], 78)
    assert started({"b": 1000}, kept=True) == (["b"], 5)


def test_engines_here_count_but_daemons_are_given_more_time() -> None:
    assert started({"b": 1000}, engines=2) == (["b"], 17)
    assert started({"b": 1000}, engines=40) == (["b"], 80)
    assert started({"a": 12, "b": 1000}, engines=2) == (["b"], 24)


def test_nobody_ready_is_waited_for_and_failures_are_told() -> None:
    assert started({"a": 100, "b": -1}) == (["b"], 100)
    assert started({"a": -100, "b": -1}) == (["a", "b"], 100)
