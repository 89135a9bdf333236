"""What is computed, as frozen values; nothing here says where.

``to_json`` of an experiment is canonical: equal experiments have equal text, and its SHA-256 names the experiment.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

DType = Literal["float32", "float64"]
Loss = Literal["cross_entropy", "mse", "logistic"]
OptimizerName = Literal["sgd", "momentum", "adam"]
Activation = Literal["tanh", "relu", "sigmoid"]

DTYPES: tuple[str, ...] = get_args(DType)
LOSSES: tuple[str, ...] = get_args(Loss)
OPTIMIZERS: tuple[str, ...] = get_args(OptimizerName)
ACTIVATIONS: tuple[str, ...] = get_args(Activation)


@dataclass(frozen=True, kw_only=True)
class Dense:
    """One affine layer: x @ weights[inputs, outputs] + bias[outputs]."""

    inputs: int
    outputs: int


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A stack of affine layers and activations, without its values."""

    layers: tuple[Dense | Activation, ...]

    @property
    def dense(self) -> tuple[Dense, ...]:
        """The affine layers, in order."""
        return tuple(layer for layer in self.layers if isinstance(layer, Dense))

    @property
    def inputs(self) -> int:
        """Width of a feature row."""
        return self.dense[0].inputs

    @property
    def outputs(self) -> int:
        """Width of the last layer."""
        return self.dense[-1].outputs

    @property
    def parameters(self) -> int:
        """Length of the flat parameter vector."""
        return sum(layer.inputs * layer.outputs + layer.outputs for layer in self.dense)


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """One optimizer with its constants; ``clip`` bounds the global norm of the mean gradient, once."""

    name: OptimizerName = "adam"
    rate: float = 0.01
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip: float | None = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides the result of a fit, but the arrays (named by their fingerprints)."""

    model: ModelSpec
    initial: str
    """Fingerprint of the initial Float64 parameter vector [P]."""
    loss: Loss
    optimizer: OptimizerSpec
    train: str
    """Fingerprint of the training rows."""
    validation: str | None
    epochs: int
    batch: int
    block: int
    """Rows of a block; the caller has resolved "auto"."""
    seed: int
    shuffle: bool = True
    standardize: bool = False
    keep_best: bool = False
    """Keep the parameters of the epoch with the lowest validation loss."""

    def to_json(self) -> str:
        """Canonical text."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a fit's programs: all that an engine knows of a model."""

    dtype: DType
    parameters: int
    """Length P of the flat vector."""
    metrics: int
    """Number M of metric sums."""
    outputs: int
    """Width O of a prediction."""
    block: int
    score_block: int

    @property
    def node_size(self) -> int:
        """Float64 values of a node: gradient, loss, weight, metrics."""
        return self.parameters + 2 + self.metrics

    def to_document(self) -> dict[str, Any]:
        """JSON values, read by ``Sizes(**document)``."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class ProgramSpec:
    """All that decides the programs of a fit: what ``lowering`` turns into StableHLO."""

    model: ModelSpec
    loss: Loss
    float_targets: bool
    """Targets are [rows, outputs] in the group dtype instead of int32 labels."""
    optimizer: OptimizerSpec
    dtype: DType
    block: int
    score_block: int

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metric sums, in order."""
        return () if self.float_targets else ("accuracy",)

    @property
    def sizes(self) -> Sizes:
        """What an engine must know of it."""
        return Sizes(
            dtype=self.dtype,
            parameters=self.model.parameters,
            metrics=len(self.metrics),
            outputs=self.model.outputs,
            block=self.block,
            score_block=self.score_block,
        )

    def to_json(self) -> str:
        """Canonical text, read by ``from_json``."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "ProgramSpec":
        """The value that ``to_json`` wrote."""
        document: dict[str, Any] = json.loads(text)
        layers = tuple(Dense(**layer) if isinstance(layer, dict) else layer for layer in document["model"]["layers"])
        document["model"] = ModelSpec(layers=layers)
        document["optimizer"] = OptimizerSpec(**document["optimizer"])
        return cls(**document)


Role = Literal["train", "validation", "test", "all"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one role, as the coordinator takes them. The source fingerprint travels with the role."""

    x: NDArray[np.float64]
    """[rows, features]"""
    y: NDArray[Any]
    """[rows] int32 labels, or [rows, outputs] float64 targets."""
    role: Role
    fingerprint: str
    """SHA-256 of x, y and role."""
    source: str
    """Fingerprint of the dataset that the rows were taken from."""

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Rows({self.role}, {len(self):,} rows, {self.x.shape[-1]:,} features)"
