"""From the values of the public calls to the requests that a coordinator takes: the same embedded, detached or remote."""

from pathlib import Path
from typing import get_args

from phalanx import datasets
from phalanx.checks import Faults
from phalanx.executions import local
from phalanx.models import Model, classifier, sequential
from phalanx.training import Training, training
from phalanx_proto.errors import InvalidRequest, ProtectedRole
from phalanx_proto.execution import Execution
from phalanx_proto.experiment import Rows
from phalanx_proto.jobs import FitRequest, OnLoss, Reproducible, SimulationRequest

MAX_SAMPLES = 10**12


def fit_request(
    model: Model,
    train: Rows,
    config: Training,
    *,
    test: Rows | None,
    execution: Execution | None,
    reproducible: Reproducible,
    on_loss: OnLoss,
    checkpoint_every: int | None,
) -> FitRequest:
    """The request of ``phalanx.fit``; raises what can be known without a machine."""
    _require(isinstance(model, Model), "model", "phalanx.classifier or phalanx.regressor", model)
    _require(isinstance(config, Training), "config", "phalanx.training", config)
    _require_rows("train", train)
    if test is not None:
        _require_rows("test", test)
    faults = Faults()
    faults.choice("reproducible", reproducible, get_args(Reproducible))
    faults.choice("on_loss", on_loss, get_args(OnLoss))
    every = None if checkpoint_every is None else faults.whole("checkpoint_every", checkpoint_every, 1)
    faults.settle()
    return FitRequest(
        model=model.network.spec, initial=model.network.parameters, loss=model.loss,
        optimizer=model.optimizer_spec(config.rate), standardize=model.standardize, float_targets=model.float_targets,
        train=train, validation=config.validation, test=test, epochs=config.epochs, batch=config.batch, block=config.block,
        seed=config.seed, shuffle=config.shuffle, keep_best=config.keep_best, execution=chosen(execution),
        reproducible=reproducible, on_loss=on_loss, checkpoint_every=every,
    )  # fmt: skip


def simulation_request(
    samples: int, seed: int, execution: Execution | None, on_loss: OnLoss, checkpoint_every: int | None
) -> SimulationRequest:
    """The request of ``phalanx.monte_carlo``; raises ``InvalidExperiment`` with all faults."""
    faults = Faults()
    samples = faults.whole("samples", samples, 1, MAX_SAMPLES)
    seed = faults.seed(seed)
    faults.choice("on_loss", on_loss, get_args(OnLoss))
    every = None if checkpoint_every is None else faults.whole("checkpoint_every", checkpoint_every, 1)
    faults.settle()
    return SimulationRequest(samples=samples, seed=seed, execution=chosen(execution), on_loss=on_loss, checkpoint_every=every)


def regression_experiment(samples: int, steps: int, rate: float, seed: int) -> tuple[Model, Rows, Training]:
    """The analytic fixture as what ``phalanx.fit`` takes; raises ``InvalidExperiment`` with all faults."""
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
    return classifier(network, loss="logistic", optimizer="sgd"), rows, config


def chosen(given: Execution | None) -> Execution:
    """The execution that was given, or this machine's CPU."""
    _require(given is None or isinstance(given, Execution), "execution", "phalanx.local, device or cluster", given)
    return local() if given is None else given


def path_of(output: str | Path) -> Path:
    """A directory as a person writes it."""
    return Path(output).expanduser().absolute()


def _require_rows(role: str, rows: object) -> None:
    if not isinstance(rows, Rows):
        raise ProtectedRole(f"{role} takes rows of a partition, such as parts.{role}, not a {type(rows).__name__}")


def _require(holds: bool, name: str, maker: str, value: object) -> None:
    if not holds:
        raise InvalidRequest(f"{name} must be made by {maker}, not a {type(value).__name__}")
