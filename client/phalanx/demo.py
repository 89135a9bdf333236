"""``make demo``: one experiment and one simulation in several places, and the proof that all places agree to the last bit.

Iris with protected roles, then pi from 10^8 points: on this CPU, and on a group of two workers over gRPC.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import phalanx
from phalanx.console import complain, end_on_signals, note
from phalanx.progress import shown
from phalanx.results import Fitted, Simulation
from phalanx_proto.errors import PhalanxError
from phalanx_proto.execution import Execution

SAMPLES = 10**8
SEED = 42
WORKERS = 2
"""Of the group."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """What one place computed."""

    place: str
    fitted: Fitted
    simulation: Simulation

    @property
    def result(self) -> tuple[str, int]:
        """What has to be the same everywhere."""
        return self.fitted.digest, self.simulation.hits


def group_file(slots: int) -> str:
    """The cluster file of two workers on this machine, which share its slots, or more than it has if it has one."""
    head = ["version = 2", 'precision = "float64"', f"oversubscribe = {str(slots < WORKERS).lower()}"]
    worker = '[[worker]]\nname = "worker-{}"\ntransport = "socket"\nslots = 1\nbackend = "cpu"'
    return "\n".join([*head, *(worker.format(number) for number in range(1, WORKERS + 1))]) + "\n"


@contextmanager
def places(slots: int) -> Iterator[Mapping[str, Execution]]:
    """Where to compute, by a name for the table; the group's file lasts as long as the context."""
    with tempfile.TemporaryDirectory(prefix="phalanx-demo-") as folder:
        file = Path(folder) / "group.toml"
        file.touch(mode=0o600)
        file.write_text(group_file(slots), encoding="utf-8")
        found: dict[str, Execution] = {"this CPU, 1 engine": phalanx.local(1)}
        if slots > 1:
            found["this CPU, 2 engines"] = phalanx.local(2)
        found[f"{WORKERS} workers, gRPC"] = phalanx.cluster(file)
        yield found


def compute(place: str, execution: Execution) -> Line:
    """The whole job in one place."""
    parts = phalanx.datasets.iris().partition(validation=0.2, test=0.2, seed=SEED)
    model = phalanx.classifier(phalanx.mlp(4, [8], 3, seed=SEED), standardize=True, optimizer="adam")
    config = phalanx.training(epochs=40, batch=32, rate=0.01, seed=SEED, validation=parts.validation)
    note(f"{place} …", quiet=False)
    with shown(False, sys.stderr) as listener:
        fitted = phalanx.fit(model, parts.train, config, test=parts.test, execution=execution, progress=listener)
    with shown(False, sys.stderr) as listener:
        simulation = phalanx.monte_carlo(samples=SAMPLES, seed=SEED, execution=execution, progress=listener)
    return Line(place=place, fitted=fitted, simulation=simulation)


def table(lines: Sequence[Line]) -> str:
    """The results side by side; seconds are of the updates and of the points, without the start of engines."""
    rows = [("where", "fit: digest", "held out", "seconds", "pi: hits", "seconds")]
    for line in lines:
        test = line.fitted.test
        rows.append(
            (
                line.place,
                line.fitted.digest[:16],
                "N/A" if test is None or test.accuracy is None else f"{test.accuracy:.3f}",
                f"{line.fitted.seconds.updates:.2f}",
                f"{line.simulation.hits:,}",
                f"{line.simulation.seconds.work:.2f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def verdict(lines: Sequence[Line]) -> tuple[bool, str]:
    """Whether all places agree, and the sentence that says so."""
    if len({line.result for line in lines}) == 1:
        estimate = lines[0].simulation.estimate
        return True, f"All {len(lines)} places gave the same parameters, bit for bit, and the same hits (pi = {estimate:.6f})."
    differing = [line.place for line in lines if line.result != lines[0].result]
    return False, f"These places differ from {lines[0].place}: {', '.join(differing)}."


def main() -> int:
    """Run the demo; the exit code is 0 if all places agree."""
    print(
        "Iris, 150 plants: fitted on training rows alone, scored once on held-out rows; then 10^8 points for pi.\n", flush=True
    )
    with places(phalanx.inventory().slots) as where:
        lines = [compute(place, execution) for place, execution in where.items()]
    agree, sentence = verdict(lines)
    print(f"\n{table(lines)}\n\n{sentence}")
    notes = {text for line in lines for text in (*line.fitted.notes, *line.simulation.notes)}
    for text in sorted(notes):
        print(f"note: {text}")
    return 0 if agree else 1


if __name__ == "__main__":
    end_on_signals()
    try:
        sys.exit(main())
    except PhalanxError as error:
        complain(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
