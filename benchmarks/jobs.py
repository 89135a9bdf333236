"""Jobs: what does it cost to ask after them?"""

from benchmarks.contenders import Contender
from benchmarks.question import Question, Scale, at_most, times_as_fast

LIST, STATUS, FIT = "a list of 10,000 jobs", "a status while a fit runs", "an update of that fit"
READ, SERVICE, COMMAND = "in Python", "through a service", "the whole command"
ALONE, ASKED = "nobody asks", "asked 20 times a second"


def contenders(case: str, scale: Scale) -> list[Contender]:
    if case == LIST:
        size = ("--directories", str(scale.of(10_000, 100)))
        return [_ours(READ, "jobs_list", size), _ours(COMMAND, "jobs_list", (*size, "--command"))]
    size = ("--epochs", str(scale.of(400, 20)))
    if case == STATUS:
        ways = {READ: "read", SERVICE: "service", COMMAND: "command"}
        return [_ours(name, "jobs_status", (*size, "--ask", way)) for name, way in ways.items()]
    return [_ours(ALONE, "jobs_fit", size), _ours(ASKED, "jobs_fit", (*size, "--asked"))]


def _ours(name: str, module: str, arguments: tuple[str, ...]) -> Contender:
    return Contender(name=name, module=module, arguments=arguments, needs=("phalanx",), ours=True, exact=False)


QUESTION = Question(
    name="jobs",
    title="Jobs",
    about="Milliseconds to list the directories of 10,000 ended jobs, to ask for the status of a job in the background whose "
    "fit runs meanwhile (median of the calls), and an update of that fit (digits, one engine) with nobody or somebody asking.",
    unit="ms",
    factor=1e3,
    cases=(LIST, STATUS, FIT),
    contenders=contenders,
    reference=READ,
    tolerance=0.0,
    goals=(
        at_most("10,000 job directories listed in under 1 s", LIST, READ, 1000, unit="ms", factor=1e3),
        at_most("a status in under 5 ms", STATUS, READ, 5, unit="ms", factor=1e3),
        at_most("a status through a service in under 5 ms", STATUS, SERVICE, 5, unit="ms", factor=1e3),
        times_as_fast("asking does not slow the fit (at least 0.97 times as fast)", FIT, ASKED, ALONE, 0.97),
    ),
    unfair=("The whole command also starts and ends an interpreter.",),
    digits=3,
    show_whole=False,
)
