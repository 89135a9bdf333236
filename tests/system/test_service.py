"""A coordinator service as its users meet it: a process, its socket, several clients, and a kill in between."""

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import phalanx
from phalanx.connection import Client, ServiceJob
from phalanx.models import Model
from phalanx_proto import job_lock
from phalanx_proto.errors import Cancelled, InvalidExperiment, InvalidRequest, ProtectedRole, Unavailable, UnknownJob

TIMEOUT = 200
ONE = phalanx.local(1, chunk=10**6)
PARTS = phalanx.datasets.iris().partition(seed=1)
TEST = phalanx.datasets.iris().rows("test")
CONFIG = phalanx.training(epochs=5, batch=32, rate=0.01, validation=PARTS.validation)


def classifier(inputs: int = 4) -> Model:
    return phalanx.classifier(phalanx.mlp(inputs, [8], 3, seed=42), standardize=True)


def wait_for(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Service:
    """A service in a process of its own, that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.socket = folder, folder / "run" / "c.sock"
        self.process: subprocess.Popen[str] | None = None

    def start(self, slots: int = 1) -> None:
        command = [sys.executable, "-m", "phalanx", "serve", "--json", "--slots", str(slots)]
        command += ["--directory", str(self.folder / "kept"), "--socket", str(self.socket)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        assert ready["socket"] == str(self.socket)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(how)
        self.process.wait(TIMEOUT)
        self.process.stdout.close()
        self.process = None


@contextlib.contextmanager
def serving() -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        found = Service(Path(folder))
        found.start()
        try:
            yield found
        finally:
            if found.process is not None:
                found.end()
            for job in (found.folder / "kept" / "jobs").iterdir():
                holder = job_lock.holder(job)
                if holder is not None:
                    os.kill(holder.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as found:
        yield found


@pytest.fixture
def mortal() -> Iterator[Service]:
    """A service for one test alone, which may kill it."""
    with serving() as found:
        yield found


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with phalanx.connect(service.socket) as found:
        yield found


def endless(client: Client) -> ServiceJob:
    return client.submit_simulation(samples=10**12, execution=ONE)


def test_only_its_owner_can_open_the_socket(service: Service) -> None:
    assert stat.S_IMODE(service.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(service.socket.parent.stat().st_mode) == 0o700
    assert service.process is not None
    assert [c for c in psutil.Process(service.process.pid).net_connections("inet") if c.status == "LISTEN"] == []


def test_health_and_reflection(service: Service) -> None:
    with grpc.insecure_channel(f"unix:{service.socket}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "phalanx_proto.v1.CoordinatorService"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = stub.ServerReflectionInfo(iter([asked]), timeout=10)
        names = {found.name for found in answer.list_services_response.service}
    assert {"phalanx_proto.v1.CoordinatorService", "grpc.health.v1.Health"} <= names


def test_a_second_service_is_refused(service: Service) -> None:
    command = [sys.executable, "-m", "phalanx", "serve", "--socket", str(service.socket)]
    ran = subprocess.run(
        [*command, "--directory", str(service.folder / "other")], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "another service holds" in ran.stderr
    with phalanx.connect(service.socket) as client:
        client.jobs()


def test_where_it_listens_is_told_in_words_and_as_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "phalanx", "serve", "--where", "--socket", str(tmp_path / "c")]
    text, document = (subprocess.check_output([*command, *more], text=True) for more in ([], ["--json"]))
    assert text == f"{tmp_path}/c\n" and json.loads(document) == {"socket": f"{tmp_path}/c"}


def test_without_a_service_the_next_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="start one with: phalanx serve"):
        phalanx.connect(tmp_path / "none.sock")


def test_a_fit_is_queued_and_its_result_evaluates_there(client: Client) -> None:
    job = client.submit_fit(classifier(), PARTS.train, CONFIG, execution=phalanx.local(1))
    fitted = job.result(TIMEOUT)
    assert isinstance(fitted, phalanx.Fitted)
    here = phalanx.fit(classifier(), PARTS.train, CONFIG, execution=phalanx.local(1))
    assert fitted.digest == here.digest
    assert fitted.evaluate(TEST) == here.evaluate(TEST)
    assert (fitted.outputs(TEST.x) == here.outputs(TEST.x)).all()
    events = job.events()
    assert [event.kind for event in events] == ["started", "checkpoint", "complete"]
    assert job.events(1) == events[1:]
    assert job.status().state == "COMPLETE"
    assert "coordinator: " in job.logs()
    assert job.resume().status().state == "COMPLETE"
    digests = [path.name for path in (Path(client.calls._socket).parents[1] / "kept" / "arrays").iterdir()]
    assert client.calls._call("MissingArrays", _missing(digests)).digests == []
    phalanx.shutdown()


def _missing(digests: list[str]) -> Any:
    from phalanx_proto.v1 import coordinator_service_pb2 as messages

    return messages.MissingArraysRequest(digests=digests)


def test_what_is_wrong_is_told_before_it_is_queued(client: Client) -> None:
    before = len(client.jobs())
    with pytest.raises(InvalidExperiment, match="features"):
        client.submit_fit(classifier(5), PARTS.train, CONFIG, execution=phalanx.local(1))
    with pytest.raises(ProtectedRole):
        client.submit_fit(classifier(), TEST, CONFIG, execution=phalanx.local(1))
    with pytest.raises(Unavailable, match=r"2|slots"):
        client.submit_simulation(samples=10**6, execution=phalanx.local(2))
    with pytest.raises(UnknownJob, match=r"no job '\.\./x'"):
        client.job("../x")
    assert len(client.jobs()) == before
    assert client.inventory()["slots"] == 1


def test_two_clients_share_the_slots_and_the_second_waits_with_a_reason(service: Service, client: Client) -> None:
    with phalanx.connect(service.socket) as other:
        first, second = endless(client), other.submit_simulation(samples=10**6, execution=ONE)
        wait_for(lambda: first.status().done > 0, "the first does not count")
        wait_for(lambda: "waits for 1 of 1 CPU slots" in str(second.status().reason), "no reason is told")
        assert second.status().state == "QUEUED"
        third = other.submit_simulation(samples=10**6, seed=7, execution=ONE)
        wait_for(lambda: f"after {second.id}" in str(third.status().reason), "no reason is told")
        assert third.cancel().state == "CANCELLED"
        assert third.status().attempts == 0
        fourth = other.submit_simulation(samples=10**6, execution=ONE)
        folder = service.folder / "kept" / "jobs" / fourth.id
        assert phalanx.job(folder).cancel().state == "CANCELLED"  # by its directory, past the service
        assert {first.id, second.id} <= {job.id for job in client.jobs()}
        pid = first.status().pid
        assert other.job(first.id).cancel().state == "CANCELLED"
        assert not psutil.pid_exists(pid or 0) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        found = second.result(TIMEOUT)
    assert isinstance(found, phalanx.Simulation) and found.hits == 785_856
    with pytest.raises(Cancelled):
        first.result()


def test_a_job_survives_its_client_and_its_service(mortal: Service) -> None:
    code = (
        f"import os, phalanx; c = phalanx.connect({str(mortal.socket)!r}); print(c.submit_simulation(samples=10**12, "
        "execution=phalanx.local(1, chunk=10**6)).id, flush=True); os.kill(os.getpid(), 9)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert ran.returncode == -signal.SIGKILL
    with phalanx.connect(mortal.socket) as client:
        job = client.job(ran.stdout.strip())
        wait_for(lambda: job.status().done > 0, "it does not count")
        waiting = client.submit_simulation(samples=10**6, execution=ONE)
        lost = client.submit_simulation(samples=10**6, seed=7, execution=ONE)
        watching = job.watch()
        assert next(watching).state == "RUNNING"
        mortal.end(signal.SIGKILL)
        folder = mortal.folder / "kept" / "jobs"
        pid = phalanx.job(folder / job.id).status().pid
        assert pid is not None and psutil.pid_exists(pid)
        alone = phalanx.job(folder / waiting.id).status()
        assert (alone.state, alone.pid) == ("QUEUED", None)
        assert str(alone.reason).startswith("it waits for a service, since the one that it was submitted to is gone")
        (folder / lost.id / "run-manifest.json").write_text("{")
        mortal.start()
        assert next(watching).pid == pid  # the stream was taken up again
    with phalanx.connect(mortal.socket) as client:
        job, waiting = client.job(job.id), client.job(waiting.id)
        assert job.status().pid == pid
        wait_for(lambda: "waits for 1 of 1" in str(waiting.status().reason), "it was not taken up")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: job.status().state == "COORDINATOR_OFFLINE", "it is not offline")
        assert waiting.result(TIMEOUT)
        assert job.resume().status().state in ("QUEUED", "RUNNING")
        wait_for(lambda: job.status().attempts == 2, "it was not resumed")
        job.cancel()
        events = job.events()
        assert events == phalanx.job(folder / job.id).events() and len(events) == job.status().events
        assert (events[0].kind, events[-1].kind) == ("started", "cancelled")


def test_requests_that_no_client_of_ours_sends(service: Service) -> None:
    from phalanx_proto.v1 import coordinator_service_pb2 as messages

    with phalanx.connect(service.socket) as client:
        calls = client.calls
        for document, message in (("", "not a JSON document"), ("{}", "which arrays"), ('{"arrays": {}}', "None is not known")):
            with pytest.raises(phalanx.PhalanxError, match=message):
                calls._call("SubmitFit", messages.SubmitFitRequest(document=document))
        for name in ("x" * 5000, "a\0b", "..", "ü" * 200):
            with pytest.raises(UnknownJob, match="this service has no job"):
                calls.status(name)
        for document in (
            "[" * 100_000,
            '{"kind": [], "arrays": {}}',
            '{"kind": "fit", "format": 1, "arrays": {}, "values": 7}',
        ):
            with pytest.raises(InvalidRequest):
                calls._call("SubmitFit", messages.SubmitFitRequest(document=document))
        with pytest.raises(InvalidRequest, match="takes a simulation"):
            request = {"format": 1, "kind": "simulation", "values": {"samples": 5, "seed": 1}, "arrays": {}}
            place = {"kind": "local", "workers": 1, "chunk": None, "dtype": "float64"}
            calls._call("SubmitFit", messages.SubmitFitRequest(document=json.dumps({**request, "execution": place})))


def test_a_damaged_status_hides_no_other_job(service: Service, client: Client) -> None:
    job = client.submit_simulation(samples=10**6, execution=ONE)
    job.result(TIMEOUT)
    path = service.folder / "kept" / "jobs" / job.id / "status.json"
    sound, others = path.read_text(), {found.id for found in client.jobs()} - {job.id}
    for change in ('"done": -1', '"done": null', '"total": "x"', f'"phase": {"[" * 100_000}'):
        path.write_text("{" + change + sound[1:].replace('"done"', '"ignored"'))
        assert {found.id for found in client.jobs()} >= others
    path.write_text(sound)


def test_in_a_running_loop_and_in_threads(client: Client) -> None:
    async def both() -> list[Any]:
        jobs = [client.submit_simulation(samples=10**6, seed=seed, execution=ONE) for seed in (42, 42)]
        return await asyncio.gather(*(asyncio.to_thread(job.result, TIMEOUT) for job in jobs))

    assert [found.hits for found in asyncio.run(both())] == [785_856, 785_856]
