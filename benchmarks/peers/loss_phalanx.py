"""Time from the loss of a worker to the next committed update, several times in one fit, and until it is back."""

import argparse
import contextlib
import os
import signal
import statistics
import time

import psutil

import phalanx
from benchmarks.peers import placements
from benchmarks.peers.line import emit
from phalanx_coordinator.members import membership
from phalanx_coordinator.runs import fit as fit_module
from phalanx_proto.jobs import Event, Progress

SEED = 42
SETTLED = 20
"""Updates with a whole group before a loss."""
MOST = 200_000
"""Updates: far more than are needed; the fit is ended when everything is measured."""
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Enough(Exception):
    """Everything is measured."""


class Losses:
    """A listener that loses a worker, waits for the next commit, and then for the worker."""

    def __init__(self, count: int, how: signal.Signals) -> None:
        self._left, self._how = count, how
        self._lost_at, self._lost_in, self._whole_since = 0.0, -1, 0
        self._whole = True
        self.gaps: list[float] = []
        self.returns: list[float] = []

    def event(self, event: Event) -> None:
        if event.kind == "joined":
            self.returns.append(time.perf_counter() - self._lost_at)
            self._whole, self._whole_since = True, self._lost_in

    def progress(self, progress: Progress) -> None:
        if progress.phase != "updates":
            return
        if self._lost_in >= 0 and progress.done > self._lost_in and len(self.gaps) < len(self.returns) + (not self._whole):
            self.gaps.append(time.perf_counter() - self._lost_at)
        if not self._whole:
            self._whole_since = progress.done
            return
        if progress.done - self._whole_since < SETTLED:
            return
        if not self._left:
            raise Enough
        self._left, self._whole, self._lost_in = self._left - 1, False, progress.done
        worker = next(child for child in psutil.Process().children() if "phalanx_worker" in child.cmdline())
        self._lost_at = time.perf_counter()
        os.kill(worker.pid, self._how)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--placement", required=True)
    parser.add_argument("--losses", type=int, required=True)
    parser.add_argument("--how", choices=SIGNALS, required=True)
    asked = parser.parse_args()
    fit_module.TELL_EVERY = 0.0
    losses = Losses(asked.losses, SIGNALS[asked.how])
    tell = membership.Membership.tell

    def heard(self: membership.Membership, kind: str, member: str, *arguments: object) -> None:
        tell(self, kind, member, *arguments)  # type: ignore[arg-type]
        losses.event(Event(time=0.0, kind=kind, member=member))  # type: ignore[arg-type]

    membership.Membership.tell = heard  # type: ignore[method-assign, assignment]
    rows = phalanx.datasets.synthetic(2_000, 16, 4, seed=SEED).rows("train")
    network = phalanx.mlp(16, [32], 4, seed=SEED)
    config = phalanx.training(epochs=MOST // 10, batch=200, rate=1e-3, seed=SEED)
    with placements.execution(asked.placement, oversubscribe=True) as execution, contextlib.suppress(Enough):
        phalanx.fit(
            phalanx.classifier(network), rows, config, execution=execution, on_loss="rebalance", progress=losses.progress
        )
    phalanx.shutdown()
    emit(
        statistics.median(losses.gaps),
        check=float(len(losses.gaps)),
        distributions=("phalanx", "jax", "jaxlib"),
        longest=max(losses.gaps),
        back=statistics.median(losses.returns),
    )


if __name__ == "__main__":
    main()
