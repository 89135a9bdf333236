"""Whoever is lost, at whatever moment: the fit ends with an error that names it, and nothing is left.

A fault is data: ``Fault(worker, update, phase)``. It is put in by wrapping the coordinator's own calls to the worker; what
happens to the worker is real. That nothing is left is shown by the guard of every test, in ``tests/conftest.py``.
"""

import asyncio
import functools
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

import phalanx
from phalanx import embedded
from phalanx.models import Model
from phalanx.results import Fitted
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.members.timing import Deadlines
from phalanx_coordinator.session import Coordinator
from phalanx_proto import wire
from phalanx_proto.errors import EngineFailed, WorkerLost
from phalanx_proto.execution import Execution
from phalanx_proto.jobs import Progress
from tests.system.conftest import MakeGroup
from tests.system.groups import classifier, daemons, end, engines, once_updating

pytestmark = pytest.mark.usefixtures("fresh", "every_update_is_told")

LOCAL, SOCKET = ("local", 1.0), ("socket", 1.0)
ROWS = phalanx.datasets.synthetic(400, 8, 3, seed=1).rows("train")
LARGE = classifier(hidden=[25_000])
"""275,003 parameters: a reply in Float64 takes two messages."""


@dataclass(frozen=True)
class Fault:
    """A worker is ended at one moment of one update (the update does not matter before the first one)."""

    worker: str
    update: int
    phase: str

    def due(self, worker: RemoteWorker, update: int) -> bool:
        return worker.name == self.worker and update == self.update


def fail_at(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Put one fault in."""
    {
        "blobs": before_call, "handshake": before_call, "opening": in_call, "before the request": before_ask,
        "computing": after_ask, "replying": in_reply, "replied": after_reply,
    }[fault.phase](patch, fault)  # fmt: skip


METHODS = {"handshake": "handshake", "blobs": "put_blobs", "opening": "open"}


def before_call(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """The worker goes just before one of the calls that bind a run."""
    original = getattr(RemoteWorker, METHODS[fault.phase])

    async def call(self: RemoteWorker, *arguments: Any) -> Any:
        if fault.due(self, fault.update):
            end(self.process.pid)
        return await original(self, *arguments)

    patch.setattr(RemoteWorker, METHODS[fault.phase], call)


def in_call(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """The worker has the call, but cannot answer it any more."""
    original = getattr(RemoteWorker, METHODS[fault.phase])

    async def call(self: RemoteWorker, *arguments: Any) -> Any:
        if not fault.due(self, fault.update):
            return await original(self, *arguments)
        end(self.process.pid, signal.SIGSTOP)
        answer = asyncio.ensure_future(original(self, *arguments))
        await asyncio.sleep(0.05)
        end(self.process.pid)
        return await answer

    patch.setattr(RemoteWorker, METHODS[fault.phase], call)


def before_ask(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """The worker goes before it is asked."""
    original = RemoteWorker.ask

    async def ask(self: RemoteWorker, update: int, *arguments: Any) -> None:
        if fault.due(self, update):
            end(self.process.pid)
        await original(self, update, *arguments)

    patch.setattr(RemoteWorker, "ask", ask)


def after_ask(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """The worker has the request, and goes before it can answer."""
    original = RemoteWorker.ask

    async def ask(self: RemoteWorker, update: int, *arguments: Any) -> None:
        if fault.due(self, update):
            end(self.process.pid, signal.SIGSTOP)
        await original(self, update, *arguments)
        if fault.due(self, update):
            end(self.process.pid)

    patch.setattr(RemoteWorker, "ask", ask)


def in_reply(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """The worker goes when a part of its reply is here."""
    collect, add = RemoteWorker.collect, wire.NodeReader.add
    replying: list[RemoteWorker] = []

    async def collected(self: RemoteWorker, update: int, reader: wire.NodeReader) -> Any:
        if fault.due(self, update):
            replying.append(self)
        return await collect(self, update, reader)

    def added(self: wire.NodeReader, part: Any, data: memoryview) -> None:
        add(self, part, data)
        while replying:
            end(replying.pop().process.pid)

    patch.setattr(RemoteWorker, "collect", collected)
    patch.setattr(wire.NodeReader, "add", added)


def after_reply(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """The reply is whole and not committed when the worker goes."""
    original = RemoteWorker.collect

    async def collect(self: RemoteWorker, update: int, reader: wire.NodeReader) -> Any:
        receipt = await original(self, update, reader)
        if fault.due(self, update):
            end(self.process.pid)
        return receipt

    patch.setattr(RemoteWorker, "collect", collect)


def fit(
    execution: Execution, *, epochs: int = 50, model: Model | None = None, progress: Callable[[Progress], None] | None = None
) -> Fitted:
    """A fit of eight updates an epoch."""
    config = phalanx.training(epochs=epochs, batch=50, rate=0.01, seed=3)
    return phalanx.fit(model or classifier(), ROWS, config, execution=execution, progress=progress)


def lost(execution: Execution, **settings: Any) -> tuple[WorkerLost, int]:
    """The error of a fit that loses a worker, and how many updates were committed by then."""
    committed = [0]
    with pytest.raises(WorkerLost) as caught:
        fit(execution, progress=lambda progress: committed.append(progress.done), **settings)
    return caught.value, committed[-1]


@pytest.mark.parametrize("phase", ["handshake", "blobs", "opening"])
def test_a_worker_that_goes_before_the_first_update(make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    fail_at(monkeypatch, Fault("b", 0, phase))
    error, committed = lost(make_group(LOCAL, SOCKET))
    assert error.message.startswith("worker b was ended by SIGKILL")
    assert error.details["worker"] == "b"
    assert committed == 0


@pytest.mark.parametrize(("phase", "committed"), [("before the request", {3}), ("computing", {3}), ("replied", {3, 4, 5})])
def test_a_worker_that_goes_during_an_update(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch, phase: str, committed: set[int]
) -> None:
    fail_at(monkeypatch, Fault("b", 3, phase))
    error, done = lost(make_group(LOCAL, SOCKET))
    assert error.message.startswith("worker b was ended by SIGKILL")
    assert error.details["worker"] == "b"
    assert done in committed


def test_a_worker_that_goes_in_the_middle_of_its_reply(make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, Fault("b", 3, "replying"))
    error, done = lost(make_group(LOCAL, SOCKET), model=LARGE)
    assert error.message.startswith("worker b was ended by SIGKILL")
    assert done in {3, 4, 5}


def test_the_one_of_two_that_went_is_named_and_the_group_is_rebuilt(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group(SOCKET, SOCKET)
    with monkeypatch.context() as patch:
        fail_at(patch, Fault("a", 2, "computing"))
        error, done = lost(group)
    assert error.details["worker"] == "a"
    assert done == 2
    assert daemons() == {} and engines() == []
    assert fit(group, epochs=1).updates == 8
    assert len(daemons()) == 2 and len(engines()) == 1


def test_a_stopped_worker_is_noticed_by_its_silence(make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    short = functools.partial(Coordinator, Deadlines(rpc=2.0, heartbeat=2.5))
    monkeypatch.setattr(embedded, "Coordinator", short)
    stop = once_updating(lambda: end(next(iter(daemons())), signal.SIGSTOP))
    with pytest.raises(WorkerLost, match="worker b gave no sign of life for 2 s; it is stopped, or out of reach"):
        fit(make_group(LOCAL, SOCKET), epochs=5000, progress=stop)


@pytest.mark.parametrize("which", [0, 1], ids=["canonical", "follower"])
def test_a_local_engine_that_goes_while_it_is_alone(make_group: MakeGroup, which: int) -> None:
    kill = once_updating(lambda: engines()[which].kill())
    with pytest.raises(EngineFailed, match=rf"engine {which + 1} was ended by SIGKILL"):
        fit(make_group(("local", 1.0), slots=2), epochs=500_000, progress=kill)


@pytest.mark.parametrize("which", [0, 1], ids=["canonical", "follower"])
def test_a_local_engine_that_goes_in_a_group(make_group: MakeGroup, which: int) -> None:
    kill = once_updating(lambda: engines()[which].kill())
    with pytest.raises(EngineFailed, match=rf"engine {which + 1} was ended by SIGKILL"):
        fit(make_group(LOCAL, LOCAL, SOCKET), epochs=5000, progress=kill)


def test_a_worker_that_goes_during_a_simulation(make_group: MakeGroup) -> None:
    kill = once_updating(lambda: end(next(iter(daemons()))))
    with pytest.raises(WorkerLost, match="worker b was ended by SIGKILL"):
        phalanx.monte_carlo(samples=10**10, execution=make_group(LOCAL, SOCKET, chunk=10**6), progress=kill)


def test_an_engine_that_goes_during_a_simulation(make_group: MakeGroup) -> None:
    kill = once_updating(lambda: engines()[0].kill())
    with pytest.raises(EngineFailed, match="engine 1 was ended by SIGKILL"):
        phalanx.monte_carlo(samples=10**10, execution=make_group(LOCAL, chunk=10**6), progress=kill)


def test_an_interrupt_ends_everything(make_group: MakeGroup) -> None:
    family: list[psutil.Process] = []

    def interrupt() -> None:
        family.extend([*daemons().values(), *engines()])
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(make_group(LOCAL, SOCKET), epochs=5000, progress=once_updating(interrupt))
    assert len(family) == 2
    assert not any(process.is_running() for process in family)


def test_an_interrupt_of_a_simulation_ends_everything(make_group: MakeGroup) -> None:
    interrupt = once_updating(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        phalanx.monte_carlo(samples=10**11, execution=make_group(LOCAL, chunk=10**6), progress=interrupt)
    assert engines() == []
