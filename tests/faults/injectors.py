"""Puts a schedule of faults into a real run: by wrapping the coordinator's own calls, signals, and a proxy on the socket."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Any

import psutil
import pytest

from phalanx_coordinator.members.launch import WorkerProcess
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_proto import wire
from tests.faults.proxy import Proxy
from tests.faults.schedules import Fault, Phase
from tests.freezing import freeze


class Injector:
    """Faults that wait for their moment; those that have happened are gone from the list."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.waiting = list(faults)
        self._proxies: dict[WorkerProcess, Proxy] = {}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """From now on, every worker that starts is behind a proxy, and every exchange is looked at."""
        start, close = WorkerProcess.start, WorkerProcess.close
        ask, collect, add = RemoteWorker.ask, RemoteWorker.collect, wire.NodeReader.add

        async def started(process: WorkerProcess, *arguments: Any, **named: Any) -> None:
            await start(process, *arguments, **named)
            self._proxies[process] = proxy = Proxy(process.socket)
            await proxy.start()
            process.socket = proxy.path

        async def closed(process: WorkerProcess) -> None:
            if process in self._proxies:
                await self._proxies.pop(process).close()
            await close(process)

        async def asked(worker: RemoteWorker, update: int, *arguments: Any) -> None:
            self._happen(worker, update, "asked")
            if any(fault.kind in ("kill", "stop") for fault in self._due(worker, update, "computing")):
                _signal(worker.process.pid, signal.SIGSTOP)  # it has the request, and cannot answer it first
            await ask(worker, update, *arguments)
            self._happen(worker, update, "computing")

        async def collected(worker: RemoteWorker, update: int, reader: wire.NodeReader) -> Any:
            reader.of = (worker, update)  # type: ignore[attr-defined]
            receipt = await collect(worker, update, reader)
            self._happen(worker, update, "replied")
            return receipt

        def added(reader: wire.NodeReader, part: Any, data: memoryview) -> None:
            add(reader, part, data)
            worker, update = reader.of  # type: ignore[attr-defined]
            self._happen(worker, update, "replying")

        patch.setattr(WorkerProcess, "start", started)
        patch.setattr(WorkerProcess, "close", closed)
        patch.setattr(RemoteWorker, "ask", asked)
        patch.setattr(RemoteWorker, "collect", collected)
        patch.setattr(wire.NodeReader, "add", added)

    def _happen(self, worker: RemoteWorker, update: int, phase: Phase) -> None:
        for fault in self._due(worker, update, phase):
            self.waiting.remove(fault)
            self._act(worker, fault)

    def _due(self, worker: RemoteWorker, update: int, phase: Phase) -> list[Fault]:
        return [one for one in self.waiting if (one.member, one.phase) == (worker.name, phase) and one.update <= update]

    def _act(self, worker: RemoteWorker, fault: Fault) -> None:
        proxy = self._proxies[worker.process]
        match fault.kind:
            case "kill":
                _signal(worker.process.pid, signal.SIGKILL)
            case "stop":
                _signal(worker.process.pid, signal.SIGSTOP)
                asyncio.get_running_loop().call_later(fault.seconds, _signal, worker.process.pid, signal.SIGCONT)
            case "cut":
                proxy.cut()
            case "silence":
                proxy.silence()
            case "slow":
                proxy.delay = fault.seconds
            case "corrupt":
                proxy.corrupt()
            case "engine":
                for child in psutil.Process(worker.process.pid).children():
                    if "phalanx_worker.engine_process" in child.cmdline():
                        child.kill()
            case _:
                raise AssertionError(f"{fault.kind} is for fakes alone")


def _signal(pid: int | None, what: signal.Signals) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            freeze(pid) if what == signal.SIGSTOP else os.kill(pid, what)
