"""Alternating rounds, and what they say: raw samples as JSON, a table a question in RESULTS.md, a chart each.

A round runs every contender of a case once, in order, so that whatever slows the machine slows all alike; ratios are
taken within a round. What was measured stays, favourable or not.
"""

import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import chart, machine
from benchmarks.contenders import Contender, Sample, run
from benchmarks.question import Measured, Question, Scale, disagreements

INTRODUCTION = """# Benchmarks

Made by `make bench`; do not edit. Every contender runs in a fresh process, in alternating rounds (A B C, A B C, ...).
Shown are medians over rounds, with the range; a ratio is the median of ratios within a round (below 1: faster). Each
contender returns a check value, and those that should agree are compared. Phalanx's rows are **bold**.
"""


def measure(question: Question, scale: Scale, rounds: int, python: str, say: Callable[[str], None]) -> Measured:
    """Run all cases; every contender once a round."""
    samples = []
    for case in question.cases:
        for number in range(rounds):
            for contender in question.contenders(case, scale):
                chosen = _interpreter(contender, python)
                sample = run(contender, case=case, number=number, python=chosen)
                samples.append(sample)
                where = f"{question.name}, {case}, round {number + 1}/{rounds}"
                say(f"{where}: {contender.name}: {_brief(question, sample)}")
    return Measured(samples=tuple(samples))


def save(folder: Path, question: Question, measured: Measured, load: float) -> None:
    """Write the raw samples and the chart of one question; ``load`` is the machine's before it began."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = [dataclasses.asdict(sample) for sample in measured.samples]
    raw = {"machine": machine.describe(), "load": load, "samples": samples}
    text = json.dumps(raw, indent=1, ensure_ascii=False)
    (folder / f"{question.name}.json").write_text(text.replace("NaN", "null") + "\n", encoding="utf-8")
    chart.draw(folder / f"{question.name}.png", question, measured, _ours(question))


def write(folder: Path, questions: tuple[Question, ...], scale: Scale) -> Path:
    """RESULTS.md in ``folder`` from whatever questions have been measured there."""
    parts = [INTRODUCTION]
    if scale.quick:
        parts.append("**A quick run: it proves that everything runs; its figures mean nothing.**\n")
    for question in questions:
        file = folder / f"{question.name}.json"
        if file.exists():
            where, measured = _load(file)
            parts.append("\n".join(_section(question, measured, where, scale)))
    target = folder / "RESULTS.md"
    target.write_text("\n".join(parts), encoding="utf-8")
    return target


def _interpreter(contender: Contender, python: str) -> str:
    return sys.executable if contender.ours else python


def _brief(question: Question, sample: Sample) -> str:
    return sample.failure or f"{sample.seconds * question.factor:.4g} {question.unit}"


def _ours(question: Question) -> frozenset[str]:
    everyone = (c for case in question.cases for c in question.contenders(case, Scale(quick=True)))
    return frozenset(contender.name for contender in everyone if contender.ours)


def _load(file: Path) -> tuple[str, Measured]:
    raw = json.loads(file.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = [{k: math.nan if v is None else v for k, v in row.items()} for row in raw["samples"]]
    return f"{raw['machine']}, load {raw['load']:.1f} before the first run", Measured(
        samples=tuple(Sample(**row) for row in rows)
    )


def _section(question: Question, measured: Measured, where: str, scale: Scale) -> Iterator[str]:
    rounds = 1 + max((sample.round for sample in measured.samples), default=0)
    yield f"## {question.title}\n"
    yield f"{question.about}\n"
    yield f"{rounds} rounds. {where}. {_versions(measured)}.\n"
    for case in question.cases:
        yield from _table(question, measured, case)
    yield f"![{question.title}]({question.name}.png)\n"
    yield from _goals(question, measured)
    yield from _doubts(question, measured, scale)
    yield "What is unfair to someone:\n"
    yield from (f"* {line}" for line in question.unfair)
    yield ""


def _table(question: Question, measured: Measured, case: str) -> Iterator[str]:
    columns = [column for column in question.columns if any(column[0] in s.extra for s in measured.samples)]
    heads = [case, f"median, {question.unit}", f"range, {question.unit}", f"against {question.reference}"]
    heads += ["whole command, s"] if question.show_whole else []
    heads += [heading for _, heading in columns]
    yield "| " + " | ".join(heads) + " |"
    yield "| --- |" + " ---: |" * (len(heads) - 1)
    for name in measured.names(case):
        samples = [s for s in measured.samples if (s.case, s.contender) == (case, name)]
        yield "| " + " | ".join(_cells(question, measured, samples, columns)) + " |"
    yield ""


def _cells(question: Question, measured: Measured, samples: list[Sample], columns: list[tuple[str, str]]) -> list[str]:
    case, name = samples[0].case, samples[0].contender
    shown = f"**{name}**" if name in _ours(question) else name
    good = [sample for sample in samples if not sample.failure]
    width = 3 + question.show_whole + len(columns)
    if not good:
        return [shown, samples[0].failure, *[""] * (width - 1)]
    values = [sample.seconds * question.factor for sample in good]
    ratios = measured.ratios(case, name, question.reference)
    cells = [
        shown + (f" ({len(good)} of {len(samples)} runs)" if len(good) < len(samples) else ""),
        f"{statistics.median(values):.{question.digits}f}",
        f"{min(values):.{question.digits}f} to {max(values):.{question.digits}f}",
        f"{statistics.median(ratios):.2f}" if ratios else "",
    ]
    if question.show_whole:
        cells.append(f"{statistics.median(sample.whole for sample in good):.2f}")
    return cells + [_extra(good, key) for key, _ in columns]


def _extra(good: list[Sample], key: str) -> str:
    values = [sample.extra[key] for sample in good if key in sample.extra]
    return f"{statistics.median(values):,.3g}" if values else ""


def _goals(question: Question, measured: Measured) -> Iterator[str]:
    yield "| goal | found | |"
    yield "| --- | --- | --- |"
    words = {True: "reached", False: "**not reached**", None: "not measured"}
    for goal in question.goals:
        verdict = goal(measured)
        yield f"| {verdict.goal} | {verdict.found} | {words[verdict.reached]} |"
    yield ""


def _doubts(question: Question, measured: Measured, scale: Scale) -> Iterator[str]:
    """Check values that differ, runs that failed, processes that stayed."""
    exact = {(case, c.name) for case in question.cases for c in question.contenders(case, scale) if c.exact}
    lines = disagreements(question, measured, exact)
    for sample in measured.samples:
        if sample.failure:
            lines.append(f"{sample.case}, {sample.contender}: {sample.failure}")
        if sample.extra.get("processes left"):
            lines.append(f"{sample.case}, {sample.contender}: left processes behind, which were ended")
    if lines:
        yield "Doubts:\n"
        yield from (f"* {line}" for line in dict.fromkeys(lines))
        yield ""


def _versions(measured: Measured) -> str:
    found: dict[str, str] = {}
    for sample in measured.samples:
        found |= dict(sample.versions)
    return ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
