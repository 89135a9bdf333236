"""From the options of ``phalanx fit`` to an experiment: data with roles, model and training settings."""

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx import models
from phalanx.commands.data import Preset, Source
from phalanx.commands.fit_options import block_rows, hidden_widths
from phalanx.commands.problems import Problems
from phalanx.dataset import Dataset, Partition
from phalanx.training import Training, training
from phalanx_proto.errors import InvalidExperiment
from phalanx_proto.experiment import Activation, Loss, OptimizerName, Rows


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model as asked for; None is left to the data."""

    hidden: Sequence[str] | None
    """As they were written."""
    activation: Activation
    loss: Loss | None
    optimizer: OptimizerName
    clip: float | None
    standardize: bool | None
    seed: int

    def model(self, data: Dataset, preset: Preset) -> models.Model:
        """A model that fits the data; raises ``InvalidExperiment``."""
        given = hidden_widths(self.hidden)
        hidden = preset.hidden if given is None else given
        standardize = preset.standardize if self.standardize is None else self.standardize
        network = models.mlp(data.features.shape[1], hidden, self._outputs(data), self.seed, activation=self.activation)
        if data.classes is None:
            return models.regressor(network, standardize=standardize, optimizer=self.optimizer, clip=self.clip)
        loss = self.loss or "cross_entropy"
        return models.classifier(network, standardize=standardize, optimizer=self.optimizer, loss=loss, clip=self.clip)

    def _outputs(self, data: Dataset) -> int:
        if data.classes is None:
            if self.loss not in (None, "mse"):
                raise InvalidExperiment(f"--loss {self.loss} is for labels, and these data have float targets: use --loss mse")
            return 1 if data.targets.ndim == 1 else int(data.targets.shape[1])
        if self.loss != "logistic":
            return data.classes
        if data.classes != 2:
            raise InvalidExperiment(f"--loss logistic is for 2 classes, and these data have {data.classes}")
        return 1


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The training as asked for; None is left to the data."""

    validation: float
    test: float
    epochs: int | None
    batch: int | None
    rate: float | None
    block: str
    """As it was written."""
    keep_best: bool
    seed: int

    def partition(self, data: Dataset) -> Partition:
        """The roles of the rows; raises ``InvalidRequest``."""
        return data.partition(validation=self.validation, test=self.test, seed=self.seed)

    def config(self, validation: Rows | None, preset: Preset) -> Training:
        """The settings; raises ``InvalidExperiment``."""
        return training(
            epochs=preset.epochs if self.epochs is None else self.epochs,
            batch=preset.batch if self.batch is None else self.batch,
            rate=preset.rate if self.rate is None else self.rate,
            seed=self.seed, validation=validation, block=block_rows(self.block), keep_best=self.keep_best,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All that ``phalanx.fit`` takes but the place."""

    model: models.Model
    train: Rows
    test: Rows | None
    config: Training


def experiment(source: Source, model: ModelOptions, steps: TrainingOptions, problems: Problems) -> Experiment | None:
    """The experiment; None where something is wrong with it, which is added to ``problems``."""
    preset = source.preset
    data = problems.attempt(source.load)
    if data is None:
        problems.attempt(lambda: steps.config(None, preset))
        return None
    parts = problems.attempt(lambda: steps.partition(data))
    validation = None if parts is None else parts.validation
    config = problems.attempt(lambda: steps.config(validation, preset))
    made = problems.attempt(lambda: model.model(data, preset))
    if parts is None or config is None or made is None:
        return None
    return Experiment(model=made, train=parts.train, test=parts.test, config=config)
