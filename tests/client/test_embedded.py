"""The coordinator's thread: what happens to those who wait when it is closed, and who may close it. No engine is started."""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from phalanx.embedded import Embedded
from phalanx_coordinator.session import Coordinator
from phalanx_coordinator.waiting import on_thread
from phalanx_proto.errors import Cancelled, InvalidRequest


@pytest.fixture
def embedded() -> Iterator[Embedded]:
    found = Embedded()
    yield found
    found.close()


async def forever(begun: threading.Event, coordinator: Coordinator) -> None:
    """Work that holds the coordinator until it is cancelled."""
    async with coordinator._turn:
        begun.set()
        await asyncio.Event().wait()


def test_closing_cancels_what_another_thread_waits_for(embedded: Embedded) -> None:
    begun, caught = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            embedded.run(lambda coordinator: forever(begun, coordinator))
        except Cancelled as error:
            caught.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert begun.wait(10)
    embedded.close()
    thread.join(10)
    assert not thread.is_alive() and len(caught) == 1


def test_an_interrupt_waits_for_work_that_does_not_hold_the_coordinator(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, going_on, undone = threading.Event(), threading.Event(), list[bool]()

    def step() -> bool:
        begun.set()
        return going_on.wait(10)

    def interrupted(future: object) -> None:
        assert begun.wait(10)
        threading.Timer(0.05, going_on.set).start()
        raise KeyboardInterrupt

    embedded.run(itself)
    monkeypatch.setattr(embedded, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embedded.run(lambda coordinator: on_thread(step, undone.append))
    assert undone == [True]


@pytest.mark.parametrize("act", [lambda embedded: embedded.close(), lambda embedded: embedded.run(lambda coordinator: None)])
def test_a_listener_can_neither_close_nor_start(embedded: Embedded, act: Callable[[Embedded], Any]) -> None:
    async def listening(coordinator: Coordinator) -> None:
        act(embedded)

    with pytest.raises(InvalidRequest, match="a progress listener cannot"):
        embedded.run(listening)


async def itself(coordinator: Coordinator) -> Coordinator:
    return coordinator


def test_a_forked_child_leaves_what_its_parent_started_alone(embedded: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letting go of a copied gRPC channel waits for ever for a thread that the child does not have."""
    parents = embedded.run(itself)
    kept = weakref.ref(parents)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        embedded.close()
        assert embedded._coordinator is parents, "closed by its owner alone"
        loop, thread = embedded._loop, embedded._thread
        assert embedded.run(itself) is not parents
        del parents
        assert kept() is not None
        embedded.close()
    assert loop is not None and thread is not None
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_closing_cancels_what_was_handed_over_a_moment_ago(embedded: Embedded) -> None:
    """The work is there before the one that waits for it has noted so, and is cancelled all the same."""
    for _ in range(20):
        begun, ended = threading.Event(), threading.Event()

        def work(begun: threading.Event = begun, ended: threading.Event = ended) -> None:
            with contextlib.suppress(Cancelled):
                embedded.run(lambda coordinator: forever(begun, coordinator))
            ended.set()

        threading.Thread(target=work, daemon=True).start()
        assert begun.wait(10)
        embedded.close()
        assert ended.wait(10)
