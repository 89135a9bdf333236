"""Jobs that outlive this process: submitted to a coordinator of their own, and found again by their directories."""

from pathlib import Path

from phalanx.asking import fit_request, path_of, simulation_request
from phalanx.job_handles import DirectoryJob, result_of
from phalanx.models import Model
from phalanx.results import Fitted, Simulation
from phalanx.training import Training
from phalanx_proto import job_files, job_registry
from phalanx_proto.errors import InvalidJob
from phalanx_proto.execution import Execution
from phalanx_proto.experiment import Rows
from phalanx_proto.jobs import Listener, OnLoss, Reproducible, unwatched
from phalanx_proto.requests import Request


def submit_fit(
    model: Model,
    train: Rows,
    config: Training,
    *,
    output: str | Path,
    test: Rows | None = None,
    execution: Execution | None = None,
    reproducible: Reproducible = "any",
    on_loss: OnLoss = "abort",
    checkpoint_every: int | None = None,
) -> DirectoryJob:
    """Start a fit in the background; it goes on when this process and its terminal are gone.

    ``output`` names the job's new directory; the rest is as in ``fit``, and so is what is refused. The job has begun when
    this returns.
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
    return _submit(request, path_of(output))


def submit_simulation(
    *,
    samples: int,
    output: str | Path,
    seed: int = 42,
    execution: Execution | None = None,
    on_loss: OnLoss = "abort",
    checkpoint_every: int | None = None,
) -> DirectoryJob:
    """Start a simulation in the background, as ``submit_fit`` does with a fit."""
    return _submit(simulation_request(samples, seed, execution, on_loss, checkpoint_every), path_of(output))


def _submit(request: Request, directory: Path) -> DirectoryJob:
    from phalanx import embedded

    embedded.submit(request, directory)
    return DirectoryJob(directory)


def job(directory: str | Path) -> DirectoryJob:
    """The job of a directory, whoever runs it; raises ``InvalidJob`` for what is none."""
    return DirectoryJob(path_of(directory))


def jobs(folder: str | Path | None = None) -> list[DirectoryJob]:
    """The jobs whose directories lie in ``folder``; without one, all that you have started with a directory."""
    found = job_registry.known() if folder is None else job_files.directories(path_of(folder))
    handles = []
    for directory in found:
        try:
            handles.append(DirectoryJob(directory))
        except InvalidJob:
            continue  # another user's, or damaged: naming it alone says why
    return handles


def load(directory: str | Path) -> Fitted:
    """The fitted model of a complete job: it evaluates and predicts as on the day it was fitted.

    Raises ``InvalidJob`` for a directory that is no job, or a job that has no fitted model.
    """
    held = job(directory)
    found = result_of(job_files.read_outcome(held.directory))
    if not isinstance(found, Fitted):
        raise InvalidJob(f"job {held.id} is a simulation, which has no fitted model; phalanx.job(DIR).result() gives its count")
    return found


def resume(
    directory: str | Path, execution: Execution | None = None, *, progress: Listener | None = None
) -> Fitted | Simulation:
    """Go on with a job in this process, from its newest checkpoint, and wait for its result; that of a complete job is read.

    ``execution`` is another place; None is the one it had. Raises ``InvalidJob``, ``JobBusy`` where it has a live
    coordinator, and what ``fit`` raises.
    """
    from phalanx import embedded

    return result_of(embedded.carry_on(job(directory).directory, execution, progress or unwatched))
