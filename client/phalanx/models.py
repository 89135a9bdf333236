"""Models: a network and what it is fitted for (loss, optimizer, standardization)."""

from dataclasses import dataclass
from typing import Any

from phalanx.checks import Faults
from phalanx.networks import Network, mlp, sequential
from phalanx_proto.experiment import LOSSES, OPTIMIZERS, Loss, OptimizerName, OptimizerSpec

__all__ = ["Model", "Network", "classifier", "mlp", "regressor", "sequential"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A network and what it is fitted for. ``classifier`` and ``regressor`` make and check one."""

    network: Network
    loss: Loss
    float_targets: bool
    """Targets are [rows, outputs] float64 instead of int32 labels."""
    standardize: bool
    """Features are shifted and scaled by mean and deviation of the training rows."""
    optimizer: OptimizerName
    momentum: float
    beta1: float
    beta2: float
    epsilon: float
    clip: float | None

    def optimizer_spec(self, rate: float) -> OptimizerSpec:
        """The optimizer with its learning rate, as the experiment holds it."""
        return OptimizerSpec(
            name=self.optimizer,
            rate=rate,
            momentum=self.momentum,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            clip=self.clip,
        )

    def __repr__(self) -> str:
        kind = "regressor" if self.float_targets else "classifier"
        constants = {
            "sgd": "",
            "momentum": f", momentum={self.momentum!r}",
            "adam": f", beta1={self.beta1!r}, beta2={self.beta2!r}, epsilon={self.epsilon!r}",
        }[self.optimizer]
        return (
            f"Model({kind}, {self.network!r}, loss={self.loss}, standardize={self.standardize}, "
            f"optimizer={self.optimizer}{constants}, clip={self.clip!r})"
        )


def classifier(
    network: Network,
    *,
    standardize: bool = False,
    optimizer: OptimizerName = "adam",
    loss: Loss = "cross_entropy",
    momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    clip: float | None = None,
) -> Model:
    """A model for int32 labels.

    Losses: ``cross_entropy`` and ``mse`` (against one-hot labels, averaged over classes too) with one output a class,
    and ``logistic`` with a single output for two classes. ``clip`` bounds the global norm of the mean gradient.
    Raises ``InvalidExperiment`` with all faults.
    """
    faults = Faults()
    faults.choice("loss", loss, LOSSES)
    _require_outputs(faults, network, loss)
    return _model(
        faults,
        network=network,
        loss=loss,
        float_targets=False,
        standardize=standardize,
        optimizer=optimizer,
        momentum=momentum,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        clip=clip,
    )


def regressor(
    network: Network,
    *,
    standardize: bool = False,
    optimizer: OptimizerName = "adam",
    momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    clip: float | None = None,
) -> Model:
    """A model for float targets, with the loss ``mse``: squared error averaged over outputs and rows.

    Raises ``InvalidExperiment`` with all faults.
    """
    return _model(
        Faults(),
        network=network,
        loss="mse",
        float_targets=True,
        standardize=standardize,
        optimizer=optimizer,
        momentum=momentum,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        clip=clip,
    )


def _model(faults: Faults, *, network: Network, **settings: Any) -> Model:
    if not isinstance(network, Network):
        faults.add(f"network must be made by phalanx.mlp or phalanx.sequential, not a {type(network).__name__}")
    elif not network.spec.layers:
        faults.add("network has no layers: add dense(inputs, outputs)")
    faults.choice("optimizer", settings["optimizer"], OPTIMIZERS)
    settings["standardize"] = faults.flag("standardize", settings["standardize"])
    for name in ("momentum", "beta1", "beta2"):
        settings[name] = faults.real(name, settings[name], 0.0, 1.0)
    settings["epsilon"] = faults.real("epsilon", settings["epsilon"], 0.0, open_low=True)
    if settings["clip"] is not None:
        settings["clip"] = faults.real("clip", settings["clip"], 0.0, open_low=True)
    faults.settle()
    return Model(network=network, **settings)


def _require_outputs(faults: Faults, network: Network, loss: Loss) -> None:
    if not isinstance(network, Network) or not network.spec.layers:
        return
    outputs = network.spec.outputs
    if loss == "logistic" and outputs != 1:
        faults.add(f"the loss logistic takes a network with 1 output, not {outputs}")
    elif loss in ("cross_entropy", "mse") and outputs < 2:
        faults.add(f"the loss {loss} takes a network with one output a class, at least 2, not {outputs}")
