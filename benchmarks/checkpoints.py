"""Checkpoints: what do they cost a fit, what does a large one take, and how long until a resumed fit goes on?"""

import statistics

from benchmarks.contenders import Contender
from benchmarks.question import Goal, Measured, Question, Scale, Verdict, at_most

FIT, WRITE, RESUME = "Dense fixture", "25 million parameters", "next committed update"
PLAIN = "without"
KEPT, SAVED, RESUMED = "with checkpoints", "a checkpoint", "resumed, cold"
VALUES = 25_000_000


def contenders(case: str, scale: Scale) -> list[Contender]:
    if case == FIT:
        epochs = ("--dtype", "float32", "--epochs", str(scale.of(10, 2)), "--repeats", str(scale.of(9, 2)))
        return [_ours(PLAIN, "checkpoint_fit", *epochs), _ours(KEPT, "checkpoint_fit", *epochs, "--keep", exact=True)]
    if case == WRITE:
        size = ("--values", str(scale.of(VALUES, 250_000)), "--repeats", str(scale.of(5, 2)))
        return [_ours(PLAIN, "checkpoint_write", *size), _ours(SAVED, "checkpoint_write", *size, "--save")]
    size = ("--dtype", "float32", "--epochs", str(scale.of(10, 2)))
    return [_ours(PLAIN, "checkpoint_resume", *size), _ours(RESUMED, "checkpoint_resume", *size, "--resume")]


def _ours(name: str, module: str, *arguments: str, exact: bool = True) -> Contender:
    return Contender(name=name, module=module, arguments=arguments, needs=("phalanx",), ours=name != PLAIN, exact=exact)


def at_most_times(text: str, case: str, contender: str, limit: float) -> Goal:
    """The median over rounds of contender / ``PLAIN`` is at most ``limit``."""

    def verdict(measured: Measured) -> Verdict:
        ratios = measured.ratios(case, contender, PLAIN)
        if not ratios:
            return Verdict(goal=text, found="not measured", reached=None)
        ratio = statistics.median(ratios)
        return Verdict(goal=text, found=f"{ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f})", reached=ratio <= limit)

    return verdict


QUESTION = Question(
    name="checkpoints",
    title="Checkpoints",
    about="Seconds of the updates of the Dense fixture (float32, 300 updates, one engine) with a job directory, without and "
    "with its checkpoints; of writing and syncing 100 MB as they are, and as a checkpoint with digests; and from a call "
    "with no engine running to the first update that is committed, of a new fit and of one that goes on after its first epoch.",
    unit="s",
    factor=1.0,
    cases=(FIT, WRITE, RESUME),
    contenders=contenders,
    reference=PLAIN,
    tolerance=0.0,
    goals=(
        at_most_times("checkpoints cost less than 2 % of a fit of the Dense fixture", FIT, KEPT, 1.02),
        at_most_times("25 million parameters: at most 1.3 times the time of the bytes with fsync", WRITE, SAVED, 1.3),
        at_most("resumed to its next update in under 5 s, JAX's start included", RESUME, RESUMED, 5.0, unit="s", factor=1.0),
    ),
    unfair=(
        "A disk that syncs slowly hides the digest; one that syncs at once shows it. The digest is made on a second core.",
        "Half a minute of a fit has at most one checkpoint more than what its own cost allows, so longer fits pay less.",
    ),
    digits=3,
    show_whole=False,
    columns=(("checkpoints", "checkpoints"), ("gigabytes_a_second", "GB/s")),
)
