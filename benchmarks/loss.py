"""Loss: how long until the next committed update, when a member is lost?"""

from benchmarks.contenders import Contender
from benchmarks.question import Question, Scale, at_most

KILLED, SILENT = "killed process", "silent link"
GROUP = "phalanx local + two sockets"
SOCKETS = "phalanx two sockets"
GOALS = {KILLED: 0.1, SILENT: 5.0}


def contenders(case: str, scale: Scale) -> list[Contender]:
    losses = scale.of(5, 1) if case == KILLED else scale.of(2, 1)
    how = "kill" if case == KILLED else "stop"
    return [
        Contender(
            name=name,
            module="loss_phalanx",
            arguments=("--placement", placement, "--losses", str(losses), "--how", how),
            needs=("phalanx",),
            ours=True,
            exact=False,
        )
        for name, placement in ((GROUP, "group:lss"), (SOCKETS, "group:ss"))
    ]


QUESTION = Question(
    name="loss",
    title="Loss of a member",
    about='Seconds from the loss of a worker of a fit with `on_loss="rebalance"` to the next committed update, by default '
    "deadlines. Killed: SIGKILL to its process. Silent: SIGSTOP, so that neither its beats nor its answers come. The worker "
    "comes back before the next loss.",
    unit="s",
    factor=1.0,
    cases=(KILLED, SILENT),
    contenders=contenders,
    reference=GROUP,
    tolerance=0.0,
    goals=(
        at_most("a killed process: at most 0.1 s", KILLED, GROUP, GOALS[KILLED], unit="s", factor=1.0),
        at_most("a silent link: at most 5 s", SILENT, GROUP, GOALS[SILENT], unit="s", factor=1.0),
    ),
    unfair=(
        "No peer takes part: Ray, Dask and torchrun lose what the process held, and restart or recompute it; what would be "
        "measured there is another thing.",
        "All members share one machine: a link that is down between two is noticed by the same silence, not by a signal.",
    ),
    digits=3,
    show_whole=False,
    columns=(("longest", "longest, s"), ("back", "until the worker is back, s")),
)
