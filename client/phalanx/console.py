"""The edge of the command line: results on standard output, all else on standard error, and exit codes that mean something."""

import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from phalanx_proto.errors import PhalanxError
from phalanx_proto.result import to_text

EXIT_CODES: Mapping[int, str] = {
    0: "done",
    1: "failed in a way that was not foreseen",
    2: "the request cannot be carried out as it stands; nothing was started",
    3: "a device, slot or worker that was asked for is not there, or cannot join",
    4: "a worker or an engine was lost, or a deadline has passed",
    5: "a sum was not finite; the update was not committed",
    130: "interrupted; everything that was started has ended (143: by SIGTERM)",
}
"""``PhalanxError.exit_code`` of each family of errors, and what the shell adds."""

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_FRAMES = 3
"""Of an unforeseen error, the innermost ones that are reported."""


class Ended(KeyboardInterrupt):
    """A signal that asks the process to end: everything ends as with Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Commands(TyperGroup):
    """A group of commands; each error of one becomes ``error: …`` on standard error, and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. An interrupt is caught here, before Typer says less about it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            number = interrupt.number if isinstance(interrupt, Ended) else int(signal.SIGINT)
            complain(f"ended by {signal.Signals(number).name}; everything that was started has ended")
            raise typer.Exit(128 + number) from None

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run and exit the process."""
        extra["standalone_mode"] = False
        try:
            status = super().main(*args, **extra)
        except PhalanxError as error:
            complain(str(error))
            status = error.exit_code
        except typer.Abort:
            status = 1
        except Exception as error:  # the last line of defence: a person gets a report, not a page
            status = _report(error)
        sys.exit(status or 0)


def complain(message: str) -> None:
    """Say on standard error what is wrong."""
    print(f"error: {message}", file=sys.stderr, flush=True)


def _report(error: Exception) -> int:
    """Tell of a wrong command line, or of an error nobody foresaw; gives the exit code."""
    describe = getattr(error, "format_message", None)
    if describe is not None:  # Typer's own, of a wrong option or value
        path = getattr(getattr(error, "ctx", None), "command_path", "phalanx")
        if describe():  # empty where the help was shown instead
            complain(f"{describe()}\nSee: {path} --help")
        return int(getattr(error, "exit_code", 2))
    complain(f"unforeseen {type(error).__name__}: {error}")
    for frame in traceback.extract_tb(error.__traceback__)[-_FRAMES:]:
        file = Path(frame.filename)
        print(f"  in {frame.name}, {file.parent.name}/{file.name}, line {frame.lineno}", file=sys.stderr)
    print("This is a fault of Phalanx. Please report these lines and what you ran.", file=sys.stderr, flush=True)
    return 1


def note(message: str, quiet: bool) -> None:
    """Say something on standard error, unless quiet."""
    if not quiet:
        print(message, file=sys.stderr, flush=True)


def print_result(document: Mapping[str, Any], summary: str, as_json: bool) -> None:
    """The result on standard output: the document as it is in ``result.json``, or the summary for a person."""
    print(to_text(document) if as_json else f"{summary}\n", end="", flush=True)


def end_on_signals() -> None:
    """Let SIGTERM, and SIGHUP where it is not ignored, end the process in the same order as Ctrl-C."""
    for number in _ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise Ended(number)
