"""The calls: ``fit``, ``monte_carlo``, ``regression``, ``inventory``. They change only where, never what."""

from pathlib import Path
from typing import TYPE_CHECKING

from phalanx import datasets
from phalanx.executions import local
from phalanx.models import Model, classifier, sequential
from phalanx.results import Fitted, Simulation
from phalanx.training import Training, training
from phalanx_proto.errors import InvalidExperiment, InvalidRequest, ProtectedRole
from phalanx_proto.execution import Execution
from phalanx_proto.experiment import Rows
from phalanx_proto.jobs import FitRequest, Listener, Progress, Reproducible, SimulationRequest

if TYPE_CHECKING:
    from phalanx_worker.inventory import Inventory


def _silent(progress: Progress) -> None:
    """No listener."""


def fit(
    model: Model,
    train: Rows,
    config: Training,
    *,
    execution: Execution | None = None,
    reproducible: Reproducible = "any",
    output: str | Path | None = None,
    progress: Listener | None = None,
) -> Fitted:
    """Fit ``model`` on training rows as ``config`` says, where ``execution`` says (None: this CPU, float64).

    ``reproducible="bitwise"`` refuses members that compute other bits than the canonical engine. ``output`` names a new
    directory for manifest, status and result. Everything that is wrong is raised before anything starts, all of it in
    one ``InvalidExperiment``; rows of a protected role raise ``ProtectedRole``; an absent device ``Unavailable``.
    """
    from phalanx.embedded import EMBEDDED

    _require(isinstance(model, Model), "model", "phalanx.classifier or phalanx.regressor", model)
    _require(isinstance(config, Training), "config", "phalanx.training", config)
    if not isinstance(train, Rows):
        raise ProtectedRole(f"fit takes the training rows of a partition, such as parts.train, not a {type(train).__name__}")
    if reproducible not in ("any", "bitwise"):
        raise InvalidExperiment(f"reproducible must be 'any' or 'bitwise', not {reproducible!r}")
    request = FitRequest(
        model=model.network.spec, initial=model.network.parameters, loss=model.loss,
        optimizer=model.optimizer_spec(config.rate), standardize=model.standardize, float_targets=model.float_targets,
        train=train, validation=config.validation, epochs=config.epochs, batch=config.batch, block=config.block,
        seed=config.seed, shuffle=config.shuffle, keep_best=config.keep_best, execution=execution or local(),
        reproducible=reproducible,
    )  # fmt: skip
    directory = None if output is None else Path(output)
    return Fitted(EMBEDDED.run(lambda coordinator: coordinator.fit(request, progress or _silent, directory)))


def monte_carlo(
    *,
    samples: int,
    seed: int = 42,
    execution: Execution | None = None,
    output: str | Path | None = None,
    progress: Listener | None = None,
) -> Simulation:
    """Estimate pi from ``samples`` points (1 to 10**12) of stream ``seed``: an exact count, the same wherever it runs."""
    from phalanx.embedded import EMBEDDED

    for name, value in (("samples", samples), ("seed", seed)):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise InvalidExperiment(f"{name} must be a whole number, not {value!r}")
    request = SimulationRequest(samples=int(samples), seed=int(seed), execution=execution or local())
    directory = None if output is None else Path(output)
    return Simulation(EMBEDDED.run(lambda coordinator: coordinator.simulate(request, progress or _silent, directory)))


def regression(
    *,
    samples: int,
    steps: int,
    rate: float = 0.5,
    seed: int = 42,
    execution: Execution | None = None,
    output: str | Path | None = None,
    progress: Listener | None = None,
) -> Fitted:
    """The analytic fixture: binary logistic regression on eight procedural features and a bias.

    Parameters start at zero; each of ``steps`` updates is plain gradient descent on all ``samples`` rows.
    """
    rows = datasets.procedural(samples, seed).rows()
    inputs = rows.x.shape[1]
    network = sequential(seed).dense(inputs, 1, initialization="zeros")
    config = training(epochs=steps, batch=len(rows), rate=rate, seed=seed, shuffle=False)
    model = classifier(network, loss="logistic", optimizer="sgd")
    return fit(model, rows, config, execution=execution, output=output, progress=progress)


def inventory() -> "Inventory":
    """What this machine has: CPUs, limits, memory, accelerators and why one was not found."""
    from phalanx.embedded import EMBEDDED

    return EMBEDDED.run(lambda coordinator: coordinator.inventory())


def shutdown() -> None:
    """End the engines that are kept warm between calls. They end with this process anyway."""
    from phalanx.embedded import EMBEDDED

    EMBEDDED.close()


def _require(holds: bool, name: str, maker: str, value: object) -> None:
    if not holds:
        raise InvalidRequest(f"{name} must be made by {maker}, not a {type(value).__name__}")
