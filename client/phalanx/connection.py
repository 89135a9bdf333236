"""``phalanx.connect``: a client of a coordinator service, on this machine or on another one through ssh.

Only gRPC, protobuf and NumPy are needed. All calls block; in a notebook they simply work, in asyncio use
``await asyncio.to_thread(job.result)``.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from phalanx.asking import fit_request, simulation_request
from phalanx.job_handles import LOOK_EVERY, Job, result_of
from phalanx.models import Model
from phalanx.results import Fitted, Simulation
from phalanx.training import Training
from phalanx_proto import arrays, outcomes, requests, tensors
from phalanx_proto.errors import CorruptData, InvalidRequest
from phalanx_proto.execution import Execution
from phalanx_proto.experiment import Rows
from phalanx_proto.job_status import JobStatus
from phalanx_proto.jobs import Event, FittedParts, OnLoss, Reproducible, Score
from phalanx_proto.user_directories import default_socket

if TYPE_CHECKING:
    from phalanx.calls import Calls
    from phalanx.tunnel import Tunnel


def connect(address: str | Path | None = None, *, phalanx: str | None = None, ssh_options: tuple[str, ...] = ()) -> "Client":
    """A client of the coordinator service that ``phalanx serve`` runs.

    Without an address: your own service on this machine. A path: that socket. ``ssh://host``, or ``ssh://host/path/of/socket``:
    through the system's ssh, with your own configuration and agent; ``phalanx`` is the absolute path of the command
    on that machine that is asked where its service listens (else the one in its PATH, or the one that ``phalanx enroll`` made),
    ``ssh_options`` go before all others.
    Raises ``InvalidRequest`` for another address, ``Unavailable`` where no service answers, saying what to do. Close the
    client, or use it in ``with``; jobs go on.
    """
    far = isinstance(address, str) and address.startswith("ssh://")
    if isinstance(address, str) and "://" in address and not far:
        raise InvalidRequest(f"{address!r:.80} is no address of a service: write ssh://host, or the path of a Unix socket here")
    if not far and (phalanx is not None or ssh_options):
        raise InvalidRequest("phalanx and ssh_options are for another machine: write ssh://host, or leave them out")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # a connection that breaks is an error, and no line on the terminal
    from phalanx.calls import Calls

    if far:
        from phalanx.tunnel import open_tunnel

        tunnel = open_tunnel(str(address), phalanx, ssh_options)
        return Client(str(address), Calls(tunnel.socket, tunnel), tunnel)
    socket = Path(address).expanduser() if address is not None else default_socket()
    return Client(str(socket), Calls(socket), None)


class Client:
    """A connection to a coordinator service."""

    def __init__(self, address: str, calls: "Calls", tunnel: "Tunnel | None") -> None:
        self._address, self._calls, self._tunnel = address, calls, tunnel
        try:
            calls.prove()
        except BaseException:
            self.close()
            raise

    def submit_fit(
        self,
        model: Model,
        train: Rows,
        config: Training,
        *,
        test: Rows | None = None,
        execution: Execution | None = None,
        reproducible: Reproducible = "any",
        on_loss: OnLoss = "abort",
        checkpoint_every: int | None = None,
    ) -> "ServiceJob":
        """Queue a fit; what ``phalanx.fit`` refuses is refused here. A cluster file is one of the service's machine.

        The rows travel only if the service does not have them.
        """
        request = fit_request(
            model,
            train,
            config,
            test=test,
            execution=execution,
            reproducible=reproducible,
            on_loss=on_loss,
            checkpoint_every=checkpoint_every,
        )
        document, held = requests.fit_to_document(request)
        self._calls.put(held)
        return ServiceJob(self, self._calls.submit("SubmitFit", document).job)

    def submit_simulation(
        self,
        *,
        samples: int,
        seed: int = 42,
        execution: Execution | None = None,
        on_loss: OnLoss = "abort",
        checkpoint_every: int | None = None,
    ) -> "ServiceJob":
        """Queue a simulation."""
        request = simulation_request(samples, seed, execution, on_loss, checkpoint_every)
        document, _ = requests.simulation_to_document(request)
        return ServiceJob(self, self._calls.submit("SubmitSimulation", document).job)

    def jobs(self) -> "list[ServiceJob]":
        """Every job of the service, in the order of submission."""
        return [ServiceJob(self, status.job) for status in self._calls.jobs()]

    def job(self, name: str) -> "ServiceJob":
        """A job by its name; raises ``UnknownJob``."""
        self._calls.status(name)
        return ServiceJob(self, name)

    def inventory(self) -> Mapping[str, Any]:
        """What the service's machine has, its slots, and how many are in use: ``slots`` and ``slots_in_use``."""
        return self._calls.inventory()

    @property
    def calls(self) -> "Calls":
        """The calls of the service."""
        return self._calls

    def close(self) -> None:
        """End the connection; the jobs go on."""
        self._calls.close()
        if self._tunnel is not None:
            self._tunnel.close()

    def __repr__(self) -> str:
        return f"<Client of {self._address}>"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class ServiceJob(Job):
    """A job of a coordinator service."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self.id = client, name

    @property
    def _calls(self) -> "Calls":
        return self._client.calls

    def status(self) -> JobStatus:
        """What it is doing now."""
        return self._calls.status(self.id)

    def events(self, after: int = 0) -> list[Event]:
        """Its history, from event number ``after`` on."""
        return self._calls.events(self.id, after)

    def watch(self, every: float = LOOK_EVERY) -> Iterator[JobStatus]:
        """Each status that differs from the one before, until the job has ended; a broken stream is taken up again."""
        return self._calls.watch(self.id)

    def cancel(self) -> JobStatus:
        """End it; the status when nothing of it is left."""
        return self._calls.cancel(self.id)

    def resume(self, execution: Execution | None = None) -> "ServiceJob":
        """Queue it again, elsewhere if ``execution`` is given."""
        document = None if execution is None else requests.execution_to_document(execution)
        self._calls.resume(self.id, "" if document is None else json.dumps(document))
        return self

    def logs(self) -> str:
        """What its coordinator and its workers said."""
        return self._calls.logs(self.id).decode(errors="replace")

    def _result(self) -> Fitted | Simulation:
        text, data = self._calls.result(self.id)
        document = json.loads(text)
        entries = arrays.entries(document)
        if data.keys() != entries.keys():
            raise CorruptData(f"the result of job {self.id} did not come whole; ask again")
        held = {name: tensors.decode(entry.dtype, entry.shape, data[name]) for name, entry in entries.items()}
        found = result_of(outcomes.from_document(document, held))
        return Fitted(found.outcome, RemoteEngine(self._calls, self.id)) if isinstance(found, Fitted) else found


class RemoteEngine:
    """Evaluates and predicts where the job was fitted, so that this machine needs no JAX."""

    def __init__(self, calls: "Calls", job: str) -> None:
        self._calls, self._job = calls, job

    def evaluate(self, fitted: FittedParts, rows: Rows) -> Score:
        """Loss and accuracy over rows."""
        return self._calls.evaluate(self._job, rows)

    def predict(self, fitted: FittedParts, x: NDArray[np.float64]) -> NDArray[Any]:
        """Outputs [rows, O]."""
        return self._calls.predict(self._job, np.ascontiguousarray(x, np.float64))
