"""The one family of errors, and the one status table used in both directions.

A message names the thing and says what the person can do next. It is public: a status, a result and a peer may show it, so
a machine goes by its alias there. What only the owner of the run may read (how a machine is reached, what it said on its
standard error, the exact command to type) is ``private``. Errors cross the wire as their class name, their message and
their details (``to_wire`` / ``from_wire``); the gRPC status is chosen by ``status_of``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

METADATA_KEY = "phalanx-error-bin"
"""Where a failed call carries the error, in its trailing metadata."""
LONGEST_WIRE = 6000
"""Bytes of it: gRPC drops the metadata of a call from 8 KiB on, and with it the status."""
LONGEST_STATUS = 400
"""Characters of a message that go into the status itself, which counts as metadata too."""


class PhalanxError(Exception):
    """Anything Phalanx refuses or loses. ``details`` hold JSON values, for machines.

    ``str(error)`` is for the owner's terminal and says everything; ``message`` and ``details`` are public.
    """

    status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, /, *, private: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.private = private
        self.details = details

    def __str__(self) -> str:
        return f"{self.message}\n{self.private}" if self.private else self.message


class InvalidRequest(PhalanxError):
    """Something asked for cannot be: wrong shape, width, label, range. Nothing was started."""

    status = "INVALID_ARGUMENT"
    exit_code = 2


class InvalidExperiment(InvalidRequest):
    """An experiment or execution with one or more faults; ``problems`` lists all of them."""

    def __init__(self, problems: Sequence[str] | str, /, **details: Any) -> None:
        listed = [problems] if isinstance(problems, str) else list(problems)
        text = listed[0] if len(listed) == 1 else f"{len(listed)} problems:\n  - " + "\n  - ".join(listed)
        super().__init__(text, **{**details, "problems": listed})

    @property
    def problems(self) -> list[str]:
        """Each fault, one sentence."""
        return list(self.details.get("problems", [self.message]))


class InvalidCluster(InvalidExperiment):
    """A cluster file that cannot be used; every fault is listed."""


class InvalidJob(InvalidRequest):
    """A directory that cannot be used as a job: it is none, is damaged, is another user's, or of a newer format."""

    status = "FAILED_PRECONDITION"


class JobBusy(InvalidRequest):
    """A job that has a live coordinator, or is in a state that does not allow what was asked."""

    status = "FAILED_PRECONDITION"


class UnknownJob(InvalidRequest):
    """A job that a coordinator does not have."""

    status = "NOT_FOUND"


class ProtectedRole(InvalidRequest):
    """Validation or test rows were offered where only training rows may be used, or the reverse."""

    status = "FAILED_PRECONDITION"


class Unavailable(PhalanxError):
    """A backend, device, package or slot that was asked for is not there. Nothing falls back."""

    status = "FAILED_PRECONDITION"
    exit_code = 3


class AdmissionRefused(Unavailable):
    """One or more machines cannot join; ``rows`` is the table (worker, field, wanted, found)."""

    def __init__(self, rows: Sequence[Mapping[str, str]], /, **details: Any) -> None:
        lines = [f"{r['worker']}: {r['field']}: wanted {r['wanted']}, found {r['found']}" for r in rows]
        super().__init__("these workers cannot join:\n  " + "\n  ".join(lines), **{**details, "rows": [dict(r) for r in rows]})


class Unauthorized(PhalanxError):
    """The token is missing or wrong."""

    status = "UNAUTHENTICATED"
    exit_code = 3


class WrongRun(PhalanxError):
    """A call for a run that this worker does not serve."""

    status = "FAILED_PRECONDITION"


class StaleIncarnation(PhalanxError):
    """A call or a reply from an older incarnation of a member."""

    status = "ABORTED"


class UnknownDigest(PhalanxError):
    """A blob or program was named that was never sent."""

    status = "NOT_FOUND"


class CorruptData(PhalanxError):
    """Bytes that do not match their checksum, digest or length."""

    status = "DATA_LOSS"


class ProgramRefused(PhalanxError):
    """A program artifact that inspection does not let through."""

    status = "INVALID_ARGUMENT"


class CheckpointRefused(PhalanxError):
    """A sound checkpoint that this run cannot go on from; ``details`` name the field, what was wanted and what it has."""

    status = "FAILED_PRECONDITION"
    exit_code = 2


class EngineFailed(PhalanxError):
    """An engine ended, overran its deadline or failed its self-test."""

    status = "INTERNAL"
    exit_code = 4


class WorkerLost(PhalanxError):
    """A member left the run: it died, stopped answering or its connection broke."""

    status = "UNAVAILABLE"
    exit_code = 4


class NonFinite(PhalanxError):
    """A sum was not finite; nothing was committed. Names update, block, rows and member."""

    status = "OUT_OF_RANGE"
    exit_code = 5


class LedgerMismatch(PhalanxError):
    """The accepted work does not add up to the plan; nothing was committed."""

    status = "DATA_LOSS"
    exit_code = 4


class OutOfTime(PhalanxError):
    """A wait reached its deadline."""

    status = "DEADLINE_EXCEEDED"
    exit_code = 4


class Cancelled(PhalanxError):
    """The run was cancelled; everything it started has ended."""

    status = "CANCELLED"
    exit_code = 130


def _family(root: type[PhalanxError]) -> dict[str, type[PhalanxError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _family(child)
    return found


def to_wire(error: PhalanxError) -> bytes:
    """The error as UTF-8 JSON: class, message, details; never what is private."""
    document = {"error": type(error).__name__, "message": error.message, "details": error.details}
    return json.dumps(document, default=str).encode()


def from_wire(data: bytes) -> PhalanxError:
    """The error that ``to_wire`` wrote; an unknown class becomes ``PhalanxError``, never a crash."""
    try:
        document = json.loads(data)
        kind = _family(PhalanxError).get(document["error"], PhalanxError)
        message, details = str(document["message"]), dict(document["details"])
        details.pop("private", None)  # nothing private crosses the wire, in either direction
    except (ValueError, KeyError, TypeError):
        return PhalanxError(f"an error that cannot be read: {data[:200]!r}")
    error = kind.__new__(kind)
    PhalanxError.__init__(error, message, **details)
    return error


def trailing(error: PhalanxError) -> tuple[tuple[str, bytes]]:
    """The trailing metadata of a failed call; what is too long for it comes shortened, without its details."""
    data = to_wire(error)
    if len(data) > LONGEST_WIRE:
        short = error.message.encode()[: LONGEST_WIRE // 8].decode(errors="ignore") + " … (shortened)"
        data = json.dumps({"error": type(error).__name__, "message": short, "details": {}}).encode()
    return ((METADATA_KEY, data),)


def carried(metadata: Iterable[tuple[str, str | bytes]] | None) -> PhalanxError | None:
    """The error in a failed call's trailing metadata; None where none of ours is there."""
    return next((from_wire(value) for key, value in metadata or () if key == METADATA_KEY and isinstance(value, bytes)), None)


def told_by(who: str, error: PhalanxError) -> PhalanxError:
    """The same error with the name of who told it before its message."""
    found = type(error).__new__(type(error))
    PhalanxError.__init__(found, f"{who}: {error.message}", **error.details)
    return found


def status_of(error: PhalanxError) -> str:
    """The name of the gRPC status code that stands for this error."""
    return type(error).status


# What a peer without Phalanx details in its answer meant.
BY_STATUS: Mapping[str, type[PhalanxError]] = {
    "UNAUTHENTICATED": Unauthorized,
    "NOT_FOUND": UnknownDigest,
    "DATA_LOSS": CorruptData,
    "INVALID_ARGUMENT": InvalidRequest,
    "DEADLINE_EXCEEDED": OutOfTime,
    "CANCELLED": Cancelled,
    "UNAVAILABLE": WorkerLost,
}
