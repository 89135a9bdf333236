"""Networks: layers with their initial parameters, the same bits from the same seed on every machine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from phalanx.checks import Faults
from phalanx_proto import philox
from phalanx_proto.errors import InvalidRequest
from phalanx_proto.experiment import ACTIVATIONS, Activation, Dense, ModelSpec

Initialization = Literal["xavier", "he", "zeros"]
INITIALIZATIONS: tuple[str, ...] = get_args(Initialization)
MAX_WIDTH = 1 << 24
MAX_PARAMETERS = 1 << 30


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """Layers with their initial values. Each method gives a new network with one more layer.

    ``mlp`` and ``sequential`` start one.
    """

    seed: int
    spec: ModelSpec
    parameters: NDArray[np.float64]
    """[P], read-only: for each dense layer the weights [inputs, outputs], row by row, then the bias [outputs]."""

    def dense(
        self,
        inputs: int,
        outputs: int,
        *,
        weights: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        initialization: Initialization = "xavier",
    ) -> "Network":
        """Adds ``x @ weights + bias`` with ``weights`` [inputs, outputs] and ``bias`` [outputs].

        Values that are not given: bias zero; weights zero, or uniform in [-limit, limit), where ``xavier`` has
        limit sqrt(6 / (inputs + outputs)) (Glorot, Bengio 2010) and ``he`` sqrt(6 / inputs) (He et al. 2015), from the
        network's seed and the number of the dense layer. Raises ``InvalidRequest``.
        """
        number = len(self.spec.layers) + 1
        faults = Faults()
        inputs = faults.whole(f"inputs of layer {number}", inputs, 1, MAX_WIDTH)
        outputs = faults.whole(f"outputs of layer {number}", outputs, 1, MAX_WIDTH)
        faults.choice(f"initialization of layer {number}", initialization, INITIALIZATIONS)
        faults.settle()
        layer = Dense(inputs=inputs, outputs=outputs)
        self._require_fit(layer)
        matrix = (
            self._initial(layer, initialization)
            if weights is None
            else _given(f"weights of layer {number}", weights, (inputs, outputs))
        )
        offset = np.zeros(outputs) if bias is None else _given(f"bias of layer {number}", bias, (outputs,))
        parameters = np.concatenate([self.parameters, matrix.reshape(-1), offset])
        parameters.setflags(write=False)
        return replace(self, spec=ModelSpec(layers=(*self.spec.layers, layer)), parameters=parameters)

    def tanh(self) -> "Network":
        """Adds a hyperbolic tangent."""
        return self._activation("tanh")

    def relu(self) -> "Network":
        """Adds max(x, 0)."""
        return self._activation("relu")

    def sigmoid(self) -> "Network":
        """Adds 1 / (1 + exp(-x))."""
        return self._activation("sigmoid")

    def _activation(self, name: Activation) -> "Network":
        if not self.spec.layers:
            raise InvalidRequest(f"{name} cannot be the first layer: start with dense(inputs, outputs)")
        return replace(self, spec=ModelSpec(layers=(*self.spec.layers, name)))

    def _require_fit(self, layer: Dense) -> None:
        number = len(self.spec.layers) + 1
        total = self.spec.parameters + layer.inputs * layer.outputs + layer.outputs
        if total > MAX_PARAMETERS:
            raise InvalidRequest(f"layer {number} makes {total:,} parameters: at most {MAX_PARAMETERS:,} are possible")
        before = [(place, known) for place, known in enumerate(self.spec.layers, 1) if isinstance(known, Dense)]
        if before and before[-1][1].outputs != layer.inputs:
            place, known = before[-1]
            raise InvalidRequest(
                f"layer {number}, dense({layer.inputs}, {layer.outputs}), takes {layer.inputs} values, "
                f"but layer {place}, dense({known.inputs}, {known.outputs}), gives {known.outputs}"
            )

    def _initial(self, layer: Dense, initialization: Initialization) -> NDArray[np.float64]:
        size = layer.inputs * layer.outputs
        if initialization == "zeros":
            return np.zeros(size)
        fan = layer.inputs + layer.outputs if initialization == "xavier" else layer.inputs
        values = philox.uniform(self.seed, philox.STREAM_INITIAL, size, lane=len(self.spec.dense))
        # 2u - 1 is exact, so the one rounding is the product's: the same bits on every machine.
        values *= 2.0
        values -= 1.0
        values *= math.sqrt(6.0 / fan)
        return values

    def __repr__(self) -> str:
        shown = [f"dense({la.inputs}, {la.outputs})" if isinstance(la, Dense) else la for la in self.spec.layers]
        return f"Network({' -> '.join(shown) or 'no layers'}; {len(self.parameters):,} parameters, seed {self.seed})"


def sequential(seed: int) -> Network:
    """A network without layers, to add to: ``sequential(7).dense(4, 8).tanh().dense(8, 3)``."""
    faults = Faults()
    seed = faults.seed(seed)
    faults.settle()
    empty = np.zeros(0)
    empty.setflags(write=False)
    return Network(seed=seed, spec=ModelSpec(layers=()), parameters=empty)


def mlp(inputs: int, hidden: Sequence[int], outputs: int, seed: int, *, activation: Activation = "tanh") -> Network:
    """Dense layers ``inputs -> hidden... -> outputs`` with an activation between them, xavier weights and zero biases.

    Raises ``InvalidExperiment`` with all faults.
    """
    faults = Faults()
    if isinstance(hidden, str) or not isinstance(hidden, Sequence | np.ndarray):
        faults.add(f"hidden must be a list of widths such as [8], not {hidden!r:.60}")
        hidden = []
    widths = [faults.whole("inputs", inputs, 1, MAX_WIDTH)]
    widths += [faults.whole(f"hidden[{place}]", width, 1, MAX_WIDTH) for place, width in enumerate(hidden)]
    widths += [faults.whole("outputs", outputs, 1, MAX_WIDTH)]
    seed = faults.seed(seed)
    faults.choice("activation", activation, ACTIVATIONS)
    faults.settle()
    network = sequential(seed)
    for place, (before, after) in enumerate(pairwise(widths)):
        network = (network._activation(activation) if place else network).dense(before, after)
    return network


def _given(name: str, values: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    try:
        array = np.asarray(values)
        kind = array.dtype.kind
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{name} are not an array of numbers: {error}") from error
    if kind not in "iuf":
        raise InvalidRequest(f"{name} must be real numbers, not {array.dtype}")
    if array.shape != shape:
        raise InvalidRequest(f"{name} must have the shape {shape}, not {array.shape}")
    if not np.isfinite(array).all():
        raise InvalidRequest(f"{name} must be finite")
    return array.astype(np.float64)
