"""Several checks whose faults are told together."""

from collections.abc import Callable
from typing import TypeVar

from phalanx_proto.errors import InvalidExperiment, InvalidRequest

Value = TypeVar("Value")


class Problems:
    """What is wrong with one command line; one error at the end names all of it."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def add(self, problem: str) -> None:
        """Note one fault, a sentence of its own."""
        self._found.append(problem)

    def attempt(self, make: Callable[[], Value]) -> Value | None:
        """What ``make`` makes; None where it is refused, and the reasons are noted."""
        try:
            return make()
        except InvalidExperiment as error:
            self._found += error.problems
        except InvalidRequest as error:
            self._found.append(error.message)
        return None

    def settle(self) -> None:
        """Raise ``InvalidExperiment`` with every fault, if there is one."""
        if self._found:
            raise InvalidExperiment(self._found)
