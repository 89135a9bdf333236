"""Measure Phalanx beside its peers: ``python benchmarks/run.py [QUESTION ...] [--rounds N] [--quick]``.

Without a question, all of them: leave the machine alone meanwhile. ``--quick`` runs everything small in a few minutes,
into a folder of its own.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import checkpoints, contenders, dense, exchange, jobs, loss, machine, overhead, report, simulation, ssh, start
from benchmarks.question import Scale

QUESTIONS = (
    dense.QUESTION, simulation.QUESTION, overhead.QUESTION, exchange.QUESTION, start.QUESTION, jobs.QUESTION, loss.QUESTION,
    ssh.QUESTION, checkpoints.QUESTION,
)  # fmt: skip
LEAST_ROUNDS = 3


def main() -> int:
    asked = _arguments()
    scale = Scale(quick=asked.quick)
    folder = asked.output or (Path(tempfile.mkdtemp(prefix="bench")) if asked.quick else Path(__file__).resolve().parent)
    contenders.adopt_orphans()
    for question in QUESTIONS:
        if question.name in asked.questions or not asked.questions:
            load = machine.load()
            measured = report.measure(question, scale, asked.rounds, asked.peer_python, _say)
            report.save(folder, question, measured, load)
            report.write(folder, QUESTIONS, scale)
    print(f"Written: {folder / 'RESULTS.md'}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [question.name for question in QUESTIONS]
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--rounds", type=int, help=f"default and least: {LEAST_ROUNDS} (quick: 1)")
    parser.add_argument("--quick", action="store_true", help="prove that everything runs")
    parser.add_argument("--output", type=Path, help="folder of RESULTS.md; default: benchmarks/ (quick: a new one)")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has the peers' packages")
    asked = parser.parse_args()
    unknown = sorted(set(asked.questions) - set(names))
    if unknown:
        parser.error(f"no such question: {', '.join(unknown)}; there are {', '.join(names)}")
    least = 1 if asked.quick else LEAST_ROUNDS
    asked.rounds = least if asked.rounds is None else asked.rounds
    if asked.rounds < least:
        parser.error(f"--rounds must be at least {least}: fewer say nothing about the spread")
    return asked


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
