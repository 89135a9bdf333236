"""The calls: ``fit``, ``monte_carlo``, ``regression``, ``inventory``. An execution changes only where, never what."""

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from phalanx import datasets
from phalanx.checks import Faults
from phalanx.executions import local
from phalanx.models import Model, classifier, sequential
from phalanx.results import Fitted, Simulation
from phalanx.training import Training, training
from phalanx_proto.errors import InvalidRequest, ProtectedRole
from phalanx_proto.execution import Execution
from phalanx_proto.experiment import Rows
from phalanx_proto.jobs import FitRequest, Listener, OnLoss, Progress, Reproducible, SimulationRequest

if TYPE_CHECKING:
    from phalanx.embedded import Inventory

MAX_SAMPLES = 10**12


def _silent(progress: Progress) -> None:
    """No listener."""


def fit(
    model: Model,
    train: Rows,
    config: Training,
    *,
    test: Rows | None = None,
    execution: Execution | None = None,
    reproducible: Reproducible = "any",
    on_loss: OnLoss = "abort",
    output: str | Path | None = None,
    progress: Listener | None = None,
) -> Fitted:
    """Fit ``model`` on training rows as ``config`` says, where ``execution`` says (None: this CPU, float64).

    ``test`` rows are scored once, after the fit; ``fitted.evaluate`` scores others later. ``reproducible="bitwise"``
    refuses members that compute other bits than the canonical engine. ``on_loss="rebalance"`` goes on without a member
    that is lost, to the same bits, and takes it in again when it is back. ``output`` names a new directory for manifest,
    status and result. ``progress`` is called with each ``Progress``, on another thread, and must return at once.

    What is wrong is raised before anything starts: the values of the experiment as one ``InvalidExperiment`` with every
    problem, rows of a protected role as ``ProtectedRole``, an absent device or slot as ``Unavailable``. ``NonFinite``
    stops a fit before the update that would spoil it; ``WorkerLost`` names the member that left. On an interrupt
    everything that was started ends before ``KeyboardInterrupt`` is raised.
    """
    from phalanx.embedded import EMBEDDED

    _require(isinstance(model, Model), "model", "phalanx.classifier or phalanx.regressor", model)
    _require(isinstance(config, Training), "config", "phalanx.training", config)
    _require_rows("train", train)
    if test is not None:
        _require_rows("test", test)
    faults = Faults()
    faults.choice("reproducible", reproducible, get_args(Reproducible))
    faults.choice("on_loss", on_loss, get_args(OnLoss))
    faults.settle()
    request = FitRequest(
        model=model.network.spec, initial=model.network.parameters, loss=model.loss,
        optimizer=model.optimizer_spec(config.rate), standardize=model.standardize, float_targets=model.float_targets,
        train=train, validation=config.validation, test=test, epochs=config.epochs, batch=config.batch, block=config.block,
        seed=config.seed, shuffle=config.shuffle, keep_best=config.keep_best, execution=_execution(execution),
        reproducible=reproducible, on_loss=on_loss,
    )  # fmt: skip
    directory = _directory(output)
    return Fitted(EMBEDDED.run(lambda coordinator: coordinator.fit(request, progress or _silent, directory)))


def monte_carlo(
    *,
    samples: int,
    seed: int = 42,
    execution: Execution | None = None,
    on_loss: OnLoss = "abort",
    output: str | Path | None = None,
    progress: Listener | None = None,
) -> Simulation:
    """Estimate pi from ``samples`` points (1 to 10**12) of stream ``seed``: an exact count, the same wherever it runs.

    ``on_loss``, ``output`` and ``progress`` are as in ``fit``. Raises ``InvalidExperiment`` with all faults, ``Unavailable``,
    ``WorkerLost``.
    """
    from phalanx.embedded import EMBEDDED

    faults = Faults()
    samples = faults.whole("samples", samples, 1, MAX_SAMPLES)
    seed = faults.seed(seed)
    faults.choice("on_loss", on_loss, get_args(OnLoss))
    faults.settle()
    request = SimulationRequest(samples=samples, seed=seed, execution=_execution(execution), on_loss=on_loss)
    directory = _directory(output)
    return Simulation(EMBEDDED.run(lambda coordinator: coordinator.simulate(request, progress or _silent, directory)))


def regression(
    *,
    samples: int,
    steps: int,
    rate: float = 0.5,
    seed: int = 42,
    execution: Execution | None = None,
    on_loss: OnLoss = "abort",
    output: str | Path | None = None,
    progress: Listener | None = None,
) -> Fitted:
    """The analytic fixture: binary logistic regression on eight procedural features and a bias.

    Parameters (8 coefficients, then the intercept) start at zero; each of ``steps`` updates is plain gradient descent
    on all ``samples`` rows, at most 10**7. Raises ``InvalidExperiment`` with all faults, and what ``fit`` raises.
    """
    faults = Faults()
    samples = faults.whole("samples", samples, 1, datasets.MAX_SAMPLES)
    steps = faults.whole("steps", steps, 1)
    rate = faults.real("rate", rate, 0.0, open_low=True)
    seed = faults.seed(seed)
    faults.settle()
    rows = datasets.procedural(samples, seed).rows()
    inputs = rows.x.shape[1]
    network = sequential(seed).dense(inputs, 1, initialization="zeros")
    config = training(epochs=steps, batch=len(rows), rate=rate, seed=seed, shuffle=False)
    model = classifier(network, loss="logistic", optimizer="sgd")
    return fit(model, rows, config, execution=execution, on_loss=on_loss, output=output, progress=progress)


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


def _execution(given: Execution | None) -> Execution:
    _require(given is None or isinstance(given, Execution), "execution", "phalanx.local, device or cluster", given)
    return local() if given is None else given


def _directory(output: str | Path | None) -> Path | None:
    return None if output is None else Path(output).expanduser()


def _require_rows(role: str, rows: object) -> None:
    if not isinstance(rows, Rows):
        raise ProtectedRole(f"{role} takes rows of a partition, such as parts.{role}, not a {type(rows).__name__}")


def _require(holds: bool, name: str, maker: str, value: object) -> None:
    if not holds:
        raise InvalidRequest(f"{name} must be made by {maker}, not a {type(value).__name__}")
