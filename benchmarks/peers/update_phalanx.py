"""Time of one update in Phalanx where the arithmetic is next to nothing (Overhead) or the vector is large (Exchange).

``--inputs``, ``--hidden`` (0: none) and two classes give the number of parameters; every member computes at least one
block of every update, all updates in one epoch. Memory is the peak of this process, which holds the coordinator, and of
its largest child.
"""

import argparse
import resource
import statistics
import time
from typing import Any

import numpy as np

import phalanx
from benchmarks.peers import placements
from benchmarks.peers.line import emit
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.members.timing import UpdatePace
from phalanx_proto.receipt import Receipt
from phalanx_proto.wire import NodeReader

CLASSES = 2
SEED = 42
DOWN_BYTES, UP_BYTES = 4, 8
"""A parameter travels in the group's float32, its gradient sum in Float64."""


def keep_times() -> tuple[list[float], list[float]]:
    """Filled as they come: seconds of each update of a group, as the coordinator takes them for its deadlines; and seconds
    from each request to a member to the end of its answer, but for those in which the member computed.
    """
    times, moving = [], []
    took, ask, collect = UpdatePace.took, RemoteWorker.ask, RemoteWorker.collect
    asked: dict[RemoteWorker, float] = {}

    def keep(self: UpdatePace, seconds: float) -> None:
        times.append(seconds)
        took(self, seconds)

    async def keep_ask(self: RemoteWorker, *arguments: Any) -> None:
        asked[self] = time.perf_counter()
        await ask(self, *arguments)

    async def keep_collect(self: RemoteWorker, update: int, reader: NodeReader) -> Receipt:
        receipt = await collect(self, update, reader)
        moving.append(time.perf_counter() - asked[self] - (receipt.total_ns or 0) / 1e9)
        return receipt

    UpdatePace.took = keep  # type: ignore[method-assign]
    RemoteWorker.ask = keep_ask  # type: ignore[assignment,method-assign]
    RemoteWorker.collect = keep_collect  # type: ignore[method-assign]
    return times, moving


def percentiles(times: list[float]) -> dict[str, float]:
    """Of all but the first updates, which may compile; nothing where no group took part."""
    if len(times) < 20:
        return {}
    found = statistics.quantiles(times[5:], n=100)
    return {"p50_ms": found[49] * 1e3, "p95_ms": found[94] * 1e3, "p99_ms": found[98] * 1e3, "longest_ms": max(times[5:]) * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--placement", required=True)
    parser.add_argument("--inputs", type=int, required=True)
    parser.add_argument("--hidden", type=int, default=0)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--oversubscribe", action="store_true")
    parser.add_argument("--share", type=float)
    asked = parser.parse_args()
    random = np.random.default_rng(SEED)
    rows = asked.batch * asked.updates
    x = random.uniform(-1.0, 1.0, size=(rows, asked.inputs))
    y = np.arange(rows) % CLASSES
    train = phalanx.Dataset.from_arrays(x, y).partition(validation=0, test=0).train
    network = phalanx.mlp(asked.inputs, [asked.hidden] if asked.hidden else [], CLASSES, seed=SEED)
    model = phalanx.classifier(network, standardize=False, optimizer="sgd")
    config = phalanx.training(epochs=1, batch=asked.batch, rate=1e-3, seed=SEED)
    times, moving = keep_times()
    with placements.execution(
        asked.placement, dtype="float32", oversubscribe=asked.oversubscribe, share=asked.share
    ) as execution:
        fitted = phalanx.fit(model, train, config, execution=execution)
    phalanx.shutdown()
    seconds = fitted.seconds
    parameters = sum(layer.inputs * layer.outputs + layer.outputs for layer in network.spec.dense)
    once = parameters * (DOWN_BYTES + UP_BYTES)
    mebibytes = 1 / 1024
    emit(
        seconds.updates,
        units=asked.updates,
        check=float(fitted.history[-1].train.loss),
        distributions=("phalanx", "jax", "jaxlib", "numpy"),
        setup=seconds.setup,
        **percentiles(times),
        gigabytes_a_second=len(fitted.members) * once * asked.updates / seconds.updates / 1e9,
        **({"moving_gigabytes_a_second": once / statistics.median(moving) / 1e9} if moving else {}),
        coordinator_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * mebibytes,
        child_mib=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * mebibytes,
    )


if __name__ == "__main__":
    main()
