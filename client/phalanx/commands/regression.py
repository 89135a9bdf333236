"""``phalanx regression``: the analytic fixture, a logistic regression whose digest does not depend on the workers."""

import sys
from typing import Annotated

import typer

from phalanx import api
from phalanx.asking import regression_experiment
from phalanx.background import submit_fit
from phalanx.commands import options
from phalanx.commands.placement import execution
from phalanx.commands.submission import announce, directory_of
from phalanx.console import print_result
from phalanx.progress import shown
from phalanx.results import Fitted

Samples = Annotated[int, typer.Option(parser=options.whole_number, metavar="N", help="Generated rows, at most 10^7.")]
Steps = Annotated[int, typer.Option(parser=options.whole_number, metavar="N", help="Updates, each on all rows.")]
Rate = Annotated[float, typer.Option(metavar="X", help="Learning rate.")]


def regression(
    samples: Samples = 100_000,
    steps: Steps = 50,
    rate: Rate = 0.5,
    seed: options.Seed = 42,
    workers: options.Workers = None,
    device: options.Device = None,
    dtype: options.Precision = None,
    cluster: options.Cluster = None,
    on_loss: options.OnLossOption = "abort",
    checkpoint_every: options.CheckpointEvery = None,
    output: options.Output = None,
    background: options.Background = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit a logistic regression on eight procedural features: zero start, full-batch gradient descent."""
    where = execution(workers=workers, cluster=cluster, device=device, dtype=dtype)
    if background:
        model, rows, config = regression_experiment(samples, steps, rate, seed)
        announce(
            submit_fit(
                model,
                rows,
                config,
                execution=where,
                on_loss=on_loss,
                checkpoint_every=checkpoint_every,
                output=directory_of(output),
            ),
            as_json,
        )
        return
    with shown(quiet, sys.stderr) as listener:
        fitted = api.regression(
            samples=samples, steps=steps, rate=rate, seed=seed, execution=where, on_loss=on_loss,
            checkpoint_every=checkpoint_every, output=output, progress=listener,
        )  # fmt: skip
    print_result(fitted.document(), f"{fitted.summary()}\n{coefficients(fitted)}", as_json)


def coefficients(fitted: Fitted) -> str:
    """The coefficients and the intercept in words."""
    *weights, intercept = fitted.parameters
    listed = " ".join(f"{weight:+.4f}" for weight in weights)
    return f"parameters  {len(weights)} coefficients {listed}, intercept {intercept:+.4f}"
