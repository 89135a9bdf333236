"""Dense fixture in PyTorch: one process, one thread; and the pieces that the DDP peer shares."""

import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.peers import dense_fixture
from benchmarks.peers.dense_fixture import RATE, WIDTHS, Fixture
from benchmarks.peers.line import emit

WARM_UPDATES = 3


def network(fixture: Fixture) -> nn.Sequential:
    """The fixture's network with its initial values."""
    dtype = getattr(torch, fixture.dtype)
    parts: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS):
        parts += [nn.Linear(inputs, outputs, dtype=dtype), nn.Tanh()]
    model = nn.Sequential(*parts[:-1])
    reset(model, fixture)
    return model


def reset(model: nn.Module, fixture: Fixture) -> None:
    """Put the initial values back."""
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    with torch.no_grad():
        for layer, (weights, bias) in zip(layers, fixture.layers(), strict=True):
            layer.weight.copy_(torch.from_numpy(weights.T.copy()))
            layer.bias.copy_(torch.from_numpy(bias))


def train(model: nn.Module, rows: tuple[torch.Tensor, torch.Tensor], batches: Iterable[tuple[torch.Tensor, float]]) -> None:
    """SGD over batches of (row ids, factor on the mean loss)."""
    features, labels = rows
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=RATE)
    for ids, factor in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(features[ids]), labels[ids])
        (loss if factor == 1.0 else loss * factor).backward()
        optimizer.step()


def final_loss(model: nn.Module, fixture: Fixture) -> float:
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    return fixture.loss([(np.ascontiguousarray(p.weight.detach().numpy().T), p.bias.detach().numpy()) for p in layers])


def main() -> None:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    fixture = dense_fixture.from_arguments()
    rows = torch.from_numpy(fixture.features), torch.from_numpy(fixture.labels)
    batches = [(torch.from_numpy(ids), 1.0) for ids in fixture.batches()]
    model = network(fixture)
    train(model, rows, batches[:WARM_UPDATES])
    reset(model, fixture)
    began = time.perf_counter()
    train(model, rows, batches)
    seconds = time.perf_counter() - began
    emit(seconds, check=final_loss(model, fixture), distributions=("torch", "numpy"))


if __name__ == "__main__":
    main()
