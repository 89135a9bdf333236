"""The calls: ``fit``, ``monte_carlo``, ``regression``, ``inventory``. An execution changes only where, never what."""

from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.asking import fit_request, path_of, regression_experiment, simulation_request
from phalanx.models import Model
from phalanx.results import Fitted, Simulation
from phalanx.training import Training
from phalanx_proto.execution import Execution
from phalanx_proto.experiment import Rows
from phalanx_proto.jobs import Listener, OnLoss, Reproducible, unwatched

if TYPE_CHECKING:
    from phalanx.embedded import Inventory


def fit(
    model: Model,
    train: Rows,
    config: Training,
    *,
    test: Rows | None = None,
    execution: Execution | None = None,
    reproducible: Reproducible = "any",
    on_loss: OnLoss = "abort",
    checkpoint_every: int | None = None,
    output: str | Path | None = None,
    progress: Listener | None = None,
) -> Fitted:
    """Fit ``model`` on training rows as ``config`` says, where ``execution`` says (None: this CPU, float64).

    ``test`` rows are scored once, after the fit; ``fitted.evaluate`` scores others later. ``reproducible="bitwise"``
    refuses members that compute other bits than the canonical engine. ``on_loss="rebalance"`` goes on without a member
    that is lost, to the same bits, and takes it in again when it is back. ``output`` names a new directory for manifest,
    status, result and checkpoints, from which ``resume`` goes on; these are written as often as costs next to nothing, and at
    least each half minute, or after each ``checkpoint_every`` updates. ``progress`` is called with each ``Progress``, on
    another thread, and must return at once.

    What is wrong is raised before anything starts: the values of the experiment as one ``InvalidExperiment`` with every
    problem, rows of a protected role as ``ProtectedRole``, an absent device or slot as ``Unavailable``. ``NonFinite``
    stops a fit before the update that would spoil it; ``WorkerLost`` names the member that left. On an interrupt
    everything that was started ends before ``KeyboardInterrupt`` is raised.
    """
    from phalanx.embedded import EMBEDDED

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
    directory = _directory(output)
    return Fitted(EMBEDDED.run(lambda coordinator: coordinator.fit(request, progress or unwatched, directory)))


def monte_carlo(
    *,
    samples: int,
    seed: int = 42,
    execution: Execution | None = None,
    on_loss: OnLoss = "abort",
    checkpoint_every: int | None = None,
    output: str | Path | None = None,
    progress: Listener | None = None,
) -> Simulation:
    """Estimate pi from ``samples`` points (1 to 10**12) of stream ``seed``: an exact count, the same wherever it runs.

    ``on_loss``, ``output`` and ``progress`` are as in ``fit``, and ``checkpoint_every`` counts samples. Raises
    ``InvalidExperiment`` with all faults, ``Unavailable``, ``WorkerLost``.
    """
    from phalanx.embedded import EMBEDDED

    request = simulation_request(samples, seed, execution, on_loss, checkpoint_every)
    directory = _directory(output)
    return Simulation(EMBEDDED.run(lambda coordinator: coordinator.simulate(request, progress or unwatched, directory)))


def regression(
    *,
    samples: int,
    steps: int,
    rate: float = 0.5,
    seed: int = 42,
    execution: Execution | None = None,
    on_loss: OnLoss = "abort",
    checkpoint_every: int | None = None,
    output: str | Path | None = None,
    progress: Listener | None = None,
) -> Fitted:
    """The analytic fixture: binary logistic regression on eight procedural features and a bias.

    Parameters (8 coefficients, then the intercept) start at zero; each of ``steps`` updates is plain gradient descent
    on all ``samples`` rows, at most 10**7. Raises ``InvalidExperiment`` with all faults, and what ``fit`` raises.
    """
    model, rows, config = regression_experiment(samples, steps, rate, seed)
    return fit(
        model,
        rows,
        config,
        execution=execution,
        on_loss=on_loss,
        checkpoint_every=checkpoint_every,
        output=output,
        progress=progress,
    )


def inventory() -> "Inventory":
    """What this machine has: CPUs, limits, memory, accelerators and why one was not found. ``summary()`` shows it."""
    from phalanx.embedded import EMBEDDED

    return EMBEDDED.run(lambda coordinator: coordinator.inventory())


def shutdown() -> None:
    """End the engines that are kept warm between calls. They end with this process anyway; a later call starts new ones.

    What another thread has under way is cancelled. A progress listener that calls this gets ``InvalidRequest``.
    """
    from phalanx.embedded import EMBEDDED

    EMBEDDED.close()


def _directory(output: str | Path | None) -> Path | None:
    return None if output is None else path_of(output)
