"""``phalanx simulate``: pi by counting points, exactly."""

import sys
from typing import Annotated

import typer

from phalanx import api
from phalanx.background import submit_simulation
from phalanx.commands import options
from phalanx.commands.placement import execution
from phalanx.commands.submission import announce, directory_of
from phalanx.console import print_result
from phalanx.progress import shown

Samples = Annotated[
    int, typer.Option(parser=options.whole_number, metavar="N", help="Points to draw, at most 10^12; 1e9 is read as well.")
]
Chunk = Annotated[
    int | None,
    typer.Option(
        parser=options.whole_number, metavar="N", rich_help_panel=options.WHERE,
        help="Samples that an engine takes at a time. (default: by the number of samples and engines)",
    ),
]  # fmt: skip


def simulate(
    samples: Samples,
    seed: options.Seed = 42,
    workers: options.Workers = None,
    device: options.Device = None,
    cluster: options.Cluster = None,
    chunk: Chunk = None,
    on_loss: options.OnLossOption = "abort",
    checkpoint_every: options.CheckpointEvery = None,
    output: options.Output = None,
    background: options.Background = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Estimate pi from random points; the count of hits is exact and the same wherever it is computed."""
    where = execution(
        workers=workers, cluster=cluster, device=device, dtype="float32" if device == "mps" else None, chunk=chunk
    )
    if background:
        announce(
            submit_simulation(
                samples=samples,
                seed=seed,
                execution=where,
                on_loss=on_loss,
                checkpoint_every=checkpoint_every,
                output=directory_of(output),
            ),
            as_json,
        )
        return
    with shown(quiet, sys.stderr) as listener:
        found = api.monte_carlo(
            samples=samples,
            seed=seed,
            execution=where,
            on_loss=on_loss,
            checkpoint_every=checkpoint_every,
            output=output,
            progress=listener,
        )
    print_result(found.document(), found.summary(), as_json)
