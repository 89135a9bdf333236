"""The checks that every constructor of the public API makes; all faults of one call are raised together.

A ``bool`` is not a number here, and a NumPy number is as good as a Python one.
"""

import math
from collections.abc import Sequence

import numpy as np

from phalanx_proto.errors import InvalidExperiment

MAX_SEED = (1 << 64) - 1


class Faults:
    """Collects what is wrong with the arguments of one call. Each check gives back the clean value."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def add(self, problem: str) -> None:
        """Note one fault, a sentence of its own."""
        self.problems.append(problem)

    def whole(self, name: str, value: object, low: int, high: int | None = None) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            self.add(f"{name} must be a whole number, not {_shown(value)}")
            return low
        if value < low or (high is not None and value > high):
            self.add(f"{name} must be {_range(low, high)}, not {int(value):,}")
            return low
        return int(value)

    def seed(self, value: object, name: str = "seed") -> int:
        """A seed: a whole number of 64 bits."""
        return self.whole(name, value, 0, MAX_SEED)

    def real(self, name: str, value: object, low: float, high: float = math.inf, *, open_low: bool = False) -> float:
        """A finite number in [low, high), or in (low, high) if ``open_low``."""
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            self.add(f"{name} must be a number, not {_shown(value)}")
            return low
        number = float(value)
        if not math.isfinite(number):
            self.add(f"{name} must be finite, not {number}")
        elif not (low < number if open_low else low <= number) or number >= high:
            bound = "above" if open_low else "at least"
            below = "" if math.isinf(high) else f" and below {high:g}"
            self.add(f"{name} must be {bound} {low:g}{below}, not {number:g}")
        return number

    def flag(self, name: str, value: object) -> bool:
        """True or False."""
        if not isinstance(value, bool | np.bool_):
            self.add(f"{name} must be True or False, not {_shown(value)}")
        return bool(value) if isinstance(value, bool | np.bool_) else False

    def choice(self, name: str, value: object, allowed: Sequence[str]) -> None:
        """One of the allowed names; the fault lists them."""
        if not isinstance(value, str) or value not in allowed:
            self.add(f"{name} must be one of {', '.join(allowed)}; not {_shown(value)}")

    def settle(self) -> None:
        """Raise ``InvalidExperiment`` with every fault, if there is one."""
        if self.problems:
            raise InvalidExperiment(self.problems)


def _range(low: int, high: int | None) -> str:
    return f"at least {low}" if high is None else f"from {low} to {high:,}"


def _shown(value: object) -> str:
    if isinstance(value, str | int | float | np.number | np.bool_ | None):
        return f"{value!r:.60}"
    return type(value).__name__
