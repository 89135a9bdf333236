"""What a question is, and the goals one can set: pure arithmetic over samples."""

import math
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass

from benchmarks.contenders import Contender, Sample


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured: ``quick`` proves that everything runs; its figures mean nothing."""

    quick: bool

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All samples of one question."""

    samples: tuple[Sample, ...]

    def values(self, case: str, contender: str) -> dict[int, float]:
        """Seconds a unit by round, of the runs that gave figures."""
        rows = (s for s in self.samples if (s.case, s.contender) == (case, contender) and not s.failure)
        return {sample.round: sample.seconds for sample in rows}

    def median(self, case: str, contender: str) -> float | None:
        values = self.values(case, contender)
        return statistics.median(values.values()) if values else None

    def ratios(self, case: str, contender: str, reference: str) -> list[float]:
        """``contender`` / ``reference``, each pair from one round."""
        mine, other = self.values(case, contender), self.values(case, reference)
        return [mine[number] / other[number] for number in sorted(mine.keys() & other.keys())]

    def names(self, case: str) -> list[str]:
        """Contenders in the order they ran."""
        return list(dict.fromkeys(sample.contender for sample in self.samples if sample.case == case))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A goal, what was found, and whether it was reached (None: nothing to tell by)."""

    goal: str
    found: str
    reached: bool | None


Goal = Callable[[Measured], Verdict]


@dataclass(frozen=True, kw_only=True)
class Question:
    """One benchmark: who takes part, how to show it, what was hoped for."""

    name: str
    title: str
    about: str
    unit: str
    factor: float
    """From seconds a unit of work to the unit shown."""
    cases: tuple[str, ...]
    contenders: Callable[[str, Scale], list[Contender]]
    """Those of one case."""
    reference: str
    """Contender whose time is 1 in the ratio column."""
    tolerance: float
    """Relative difference that check values of exact contenders may have."""
    goals: tuple[Goal, ...]
    unfair: tuple[str, ...]
    """What the figures do not show, peer by peer."""
    digits: int = 2
    show_whole: bool = True
    columns: tuple[tuple[str, str], ...] = ()
    """Further columns: (key of ``extra``, heading)."""


def at_most(text: str, case: str, contender: str, limit: float, *, unit: str, factor: float) -> Goal:
    """The contender's median is at most ``limit`` (in the unit shown)."""

    def verdict(measured: Measured) -> Verdict:
        median = measured.median(case, contender)
        if median is None:
            return Verdict(goal=text, found="not measured", reached=None)
        shown = median * factor
        return Verdict(goal=text, found=f"{shown:.3g} {unit}", reached=shown <= limit)

    return verdict


def times_as_fast(text: str, case: str, contender: str, reference: str, least: float) -> Goal:
    """Median over rounds of reference / contender is at least ``least``."""

    def verdict(measured: Measured) -> Verdict:
        ratios = measured.ratios(case, reference, contender)
        if not ratios:
            return Verdict(goal=text, found="not measured", reached=None)
        ratio = statistics.median(ratios)
        return Verdict(goal=text, found=f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", reached=ratio >= least)

    return verdict


def fastest_group(text: str, case: str, groups: tuple[str, ...], singles: tuple[str, ...]) -> Goal:
    """Some group's median is below every single placement's."""

    def best(measured: Measured, names: tuple[str, ...]) -> tuple[float, str]:
        found = ((median, name) for name in names if (median := measured.median(case, name)) is not None)
        return min(found, default=(math.nan, ""))

    def verdict(measured: Measured) -> Verdict:
        (group, group_name), (single, single_name) = best(measured, groups), best(measured, singles)
        if math.isnan(group) or math.isnan(single):
            return Verdict(goal=text, found="not measured", reached=None)
        found = f"{group_name} {group:.3g} s, {single_name} {single:.3g} s"
        return Verdict(goal=text, found=found, reached=group < single)

    return verdict


def disagreements(question: Question, measured: Measured, exact: Collection[tuple[str, str]]) -> list[str]:
    """Lines on check values of ``exact`` (case, contender) that differ by more than the tolerance from the case's first."""
    lines = []
    for case in question.cases:
        rows = [s for s in measured.samples if s.case == case and (case, s.contender) in exact and not s.failure]
        for sample in rows:
            if not math.isclose(sample.check, rows[0].check, rel_tol=question.tolerance):
                lines.append(
                    f"{case}, {sample.contender}: check {sample.check!r}, but {rows[0].contender} has {rows[0].check!r}"
                )
    return list(dict.fromkeys(lines))
