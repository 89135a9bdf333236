"""The command line: work (``phalanx fit``, ``simulate``, ``regression``), jobs (``status``, ``resume``, …) and machines."""

from typing import Annotated

import typer

from phalanx.commands import (
    cancel,
    cluster,
    doctor,
    enroll,
    fit,
    inventory,
    jobs,
    logs,
    regression,
    resume,
    serve,
    simulate,
    status,
    worker,
)  # fmt: skip
from phalanx.commands.finding import JobCommand
from phalanx.console import EXIT_CODES, Commands, end_on_signals
from phalanx_proto.version import VERSION

EPILOG = "\n".join(["Exit codes", *(f"{code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())])

app = typer.Typer(
    cls=Commands, epilog=EPILOG, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)  # fmt: skip
app.command(epilog=EPILOG)(fit.fit)
app.command(epilog=EPILOG)(simulate.simulate)
app.command(epilog=EPILOG)(regression.regression)
app.command()(inventory.inventory)
app.add_typer(cluster.app, name="cluster")
app.command(epilog=EPILOG)(doctor.doctor)
app.command(epilog=EPILOG)(enroll.enroll)
app.command()(jobs.jobs)
app.command(cls=JobCommand)(status.status)
app.command(cls=JobCommand)(logs.logs)
app.command(cls=JobCommand)(cancel.cancel)
app.command(cls=JobCommand, epilog=EPILOG)(resume.resume)
app.command(
    add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)(worker.worker)  # fmt: skip
app.command(epilog=EPILOG)(serve.serve)


def _version(asked: bool) -> None:
    if asked:
        print(f"phalanx {VERSION}")
        raise typer.Exit


@app.callback()
def phalanx(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Fit models and run simulations in lockstep on the machines you already reach; the place changes no bit of a result."""


def main() -> None:
    """The entry point of the ``phalanx`` script."""
    end_on_signals()
    app(prog_name="phalanx")
