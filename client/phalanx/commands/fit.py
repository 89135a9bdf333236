"""``phalanx fit``: a dense network on training rows, scored on rows that it never saw."""

import sys

from phalanx import api
from phalanx.background import submit_fit
from phalanx.commands import fit_options as of_fit
from phalanx.commands import options
from phalanx.commands.data import Source
from phalanx.commands.experiment import ModelOptions, TrainingOptions, experiment
from phalanx.commands.placement import execution
from phalanx.commands.problems import Problems
from phalanx.commands.submission import announce, directory_of
from phalanx.console import print_result
from phalanx.progress import shown


def fit(
    data: of_fit.Data,
    rows: of_fit.SyntheticRows = None,
    inputs: of_fit.SyntheticInputs = None,
    classes: of_fit.SyntheticClasses = None,
    validation: of_fit.Validation = 0.2,
    test: of_fit.Test = 0.2,
    standardize: of_fit.Standardize = None,
    hidden: of_fit.Hidden = None,
    activation: of_fit.ActivationOption = "tanh",
    loss: of_fit.LossOption = None,
    optimizer: of_fit.Optimizer = "adam",
    epochs: of_fit.Epochs = None,
    batch: of_fit.Batch = None,
    rate: of_fit.Rate = None,
    clip: of_fit.Clip = None,
    block: of_fit.Block = "auto",
    keep_best: of_fit.KeepBest = False,
    seed: options.Seed = 42,
    workers: options.Workers = None,
    device: options.Device = None,
    dtype: options.Precision = None,
    cluster: options.Cluster = None,
    reproducible: of_fit.ReproducibleOption = "any",
    on_loss: options.OnLossOption = "abort",
    checkpoint_every: options.CheckpointEvery = None,
    output: options.Output = None,
    background: options.Background = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit a dense network; the place does not change the result.

    Validation rows are scored after each epoch, test rows once, after the fit; neither is ever trained on.
    """
    problems = Problems()
    where = problems.attempt(lambda: execution(workers=workers, cluster=cluster, device=device, dtype=dtype))
    model = ModelOptions(
        hidden=hidden, activation=activation, loss=loss, optimizer=optimizer, clip=clip, standardize=standardize, seed=seed
    )
    steps = TrainingOptions(
        validation=validation, test=test, epochs=epochs, batch=batch, rate=rate, block=block,
        keep_best=keep_best, seed=seed,
    )  # fmt: skip
    source = Source(name=data, rows=rows, inputs=inputs, classes=classes, seed=seed)
    wanted = experiment(source, model, steps, problems)
    directory = problems.attempt(lambda: directory_of(output)) if background else None
    problems.settle()
    assert wanted is not None
    values = (wanted.model, wanted.train, wanted.config)
    named = {
        "test": wanted.test, "execution": where, "reproducible": reproducible, "on_loss": on_loss,
        "checkpoint_every": checkpoint_every,
    }  # fmt: skip
    if directory is not None:
        announce(submit_fit(*values, **named, output=directory), as_json)  # type: ignore[arg-type]
        return
    with shown(quiet, sys.stderr) as listener:
        fitted = api.fit(*values, **named, output=output, progress=listener)  # type: ignore[arg-type]
    print_result(fitted.document(), fitted.summary(), as_json)
