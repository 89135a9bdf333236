"""One chart a question: a bar a contender (median), a whisker (range), a panel a case."""

from pathlib import Path
from typing import Any

from benchmarks.question import Measured, Question

OURS, PEER, INK = "#1f6f8b", "#c9ccd1", "#30343b"
WIDTH_INCHES, BAR_INCHES, PANEL_INCHES = 8.0, 0.34, 1.1
LOG_FROM = 20.0
"""Ratio of the longest bar to the shortest from which the axis is logarithmic."""


def draw(file: Path, question: Question, measured: Measured, ours: frozenset[str]) -> None:
    """Write the PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = {case: [name for name in measured.names(case) if measured.values(case, name)] for case in question.cases}
    heights = [max(1, len(names[case])) * BAR_INCHES + PANEL_INCHES for case in question.cases]
    figure, panels = pyplot.subplots(
        len(question.cases),
        figsize=(WIDTH_INCHES, sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    figure.suptitle(f"{question.title}: {question.unit}, shorter is better", x=0.01, ha="left", color=INK, weight="bold")
    for panel, case in zip(panels[:, 0], question.cases, strict=True):
        _panel(panel, question, measured, case, names[case], ours)
    figure.savefig(file, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def _panel(panel: Any, question: Question, measured: Measured, case: str, names: list[str], ours: frozenset[str]) -> None:
    shown = [[seconds * question.factor for seconds in measured.values(case, name).values()] for name in names]
    medians = [(measured.median(case, name) or 0.0) * question.factor for name in names]
    reach = [
        [median - min(values) for median, values in zip(medians, shown, strict=True)],
        [max(values) - median for median, values in zip(medians, shown, strict=True)],
    ]
    colors = [OURS if name in ours else PEER for name in names]
    panel.barh(names, medians, xerr=reach, color=colors, error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2})
    panel.invert_yaxis()
    panel.set_title(case, loc="left", fontsize=9, color=INK)
    panel.tick_params(labelsize=8, colors=INK)
    panel.spines[["top", "right", "left"]].set_visible(False)
    if medians and max(medians) > LOG_FROM * min(medians):
        panel.set_xscale("log")
    for index, (median, values) in enumerate(zip(medians, shown, strict=True)):
        text = f"{median:.{question.digits}f}"
        panel.annotate(text, (max(values), index), (5, 0), textcoords="offset points", va="center", fontsize=8, color=INK)
    panel.margins(x=0.12)
