"""The directory of a job, as a reader finds it: what lies where, and what can be wrong with it. Nothing here writes.

run-manifest.json  what was asked of whom, with which versions; made first, says the format
status.json        the last status that its coordinator confirmed, replaced whole
request.json/.npz  all that is needed to run it again, with the digest of all in it but where it is computed
events.jsonl       its history, a line an event
coordinator.log    what its coordinator and its workers said, the name before each line
checkpoints/       the newest checkpoints
result.json        the public result; outcome.json and fitted.npz are what a model is loaded from
lock               held by the live coordinator
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import job_lock, job_registry, outcomes, plain_values, requests
from phalanx_proto.errors import CorruptData, InvalidJob, InvalidRequest, PhalanxError, from_wire
from phalanx_proto.job_status import JobStatus, seen
from phalanx_proto.jobs import Event

FORMAT = 1
"""Of a job's directory; a newer one is refused."""
MANIFEST, STATUS, RESULT = "run-manifest.json", "status.json", "result.json"
REQUEST, REQUEST_ARRAYS = "request.json", "request.npz"
OUTCOME, OUTCOME_ARRAYS = "outcome.json", "fitted.npz"
EVENTS, LOG, CHECKPOINTS, CANCEL = "events.jsonl", "coordinator.log", "checkpoints", "cancel"
"""``CANCEL`` is there where somebody has asked for the job to end."""


LONGEST_EVENT = 1 << 16
"""Bytes at the end of the history that are looked at for the last event."""


def require_job(directory: Path) -> Path:
    """The absolute path of a job's directory; raises ``InvalidJob`` for what is none, or cannot be read here."""
    path = directory.expanduser().absolute()
    try:
        owner = path.stat().st_uid
    except OSError as error:
        raise InvalidJob(f"the job directory {path} cannot be read: {error.strerror}; phalanx jobs lists yours") from None
    if owner != os.getuid():
        raise InvalidJob(f"the job directory {path} belongs to another user (uid {owner}); only its owner can use it")
    if not (path / MANIFEST).is_file():
        raise InvalidJob(
            f"{path} is not a job directory: it has no {MANIFEST}; name the DIR that was given to --output, or see phalanx jobs"
        )
    manifest = read_json(path, MANIFEST)
    found = manifest.get("format")
    if not isinstance(found, int) or found < 1:
        raise damaged(path, MANIFEST, "it has no format")
    if found > FORMAT:
        raise InvalidJob(
            f"the job directory {path} has the format {found}, and this version reads up to {FORMAT}: use a newer Phalanx"
        )
    return path


def damaged(directory: Path, name: str, how: str) -> InvalidJob:
    """The error of a file that cannot be read, with what to do."""
    step = "put a sound copy in its place, or submit the job again with a new --output"
    if name == STATUS:
        step = "move it away, and phalanx resume goes on from the newest checkpoint"
    return InvalidJob(f"{name} of {directory} is damaged: {how}; nothing was changed there; {step}")


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """One document of a job; raises ``InvalidJob`` where it is missing or damaged."""
    try:
        with open(f"{directory}/{name}", "rb", buffering=0) as file:  # thousands are read for one list
            found = json.loads(file.readall())
    except FileNotFoundError:
        raise InvalidJob(
            f"job {directory.name} has no {name}: {directory} was not written whole, or by another version; submit it again, "
            "with a new --output"
        ) from None
    except OSError as error:
        raise InvalidJob(f"{name} of {directory} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise damaged(directory, name, "it is not a JSON document")
    return found


def read_arrays(directory: Path, name: str) -> dict[str, NDArray[Any]]:
    """The arrays of one ``.npz`` of a job; none where it is not there. Raises ``InvalidJob`` where it is damaged."""
    try:
        with (directory / name).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except FileNotFoundError:
        return {}
    except Exception as error:  # zip files fail in many ways
        raise damaged(directory, name, str(error)) from None


def confirmed_status(directory: Path) -> JobStatus:
    """The last status that a coordinator wrote; raises ``InvalidJob``."""
    if not os.path.exists(f"{directory}/{STATUS}"):  # it was lost, or the job was submitted in the moment of a power cut
        kind = str(read_json(directory, MANIFEST).get("kind", "fit"))
        return JobStatus(job=directory.name, kind=kind, state="QUEUED")
    try:
        return JobStatus.from_document({"kind": "fit", **read_json(directory, STATUS), "job": directory.name})
    except CorruptData as error:
        raise damaged(directory, STATUS, error.message) from None


def read_status(directory: Path) -> JobStatus:
    """What a job is doing now; ``directory`` is one that ``require_job`` let pass. Raises ``InvalidJob``."""
    status = confirmed_status(directory)
    if status.ended:
        return seen(status, None)
    live = job_lock.holder(directory)
    if live is None:  # it may have ended between the two looks
        status = confirmed_status(directory)
    found = seen(status, None if live is None else live.pid)
    if found.state != "COORDINATOR_OFFLINE" or (last := _last_event(directory)) is None:
        return found
    if last.kind not in ("failed", "cancelled"):
        return found
    ended = "has failed" if last.kind == "failed" else "was cancelled"
    reason = f"it {ended}, and its status could not be written then: {last.reason}; phalanx resume goes on with it"
    return replace(found, reason=reason)


def listed(folder: Path | None) -> tuple[list[tuple[Path, JobStatus]], list[str]]:
    """Every job of a folder (None: of the user's registry) with its status, and what is wrong with the others.

    Of each only the status is read, so that thousands take less than a second.
    """
    found, problems = [], []
    for directory in job_registry.known() if folder is None else directories(folder):
        try:
            if directory.stat().st_uid != os.getuid():
                problems.append(f"{directory} belongs to another user")
                continue
            found.append((directory, read_status(directory)))
        except InvalidJob as error:
            problems.append(error.message)
        except OSError as error:
            problems.append(f"{directory} cannot be read: {error.strerror}")
        except Exception as error:  # one job that nobody foresaw hides no other
            problems.append(f"{directory} cannot be listed: {type(error).__name__}: {error!s:.200}")
    return found, problems


def read_request(directory: Path) -> requests.Request:
    """What was asked for; raises ``InvalidJob``, also where it is not what the job was made with."""
    try:
        document = read_json(directory, REQUEST)
        requests.require_format(document)
        if document.get("digest") != requests.digest(document):
            raise InvalidJob(
                f"{REQUEST} of {directory} is not the one that the job was made with: its digest differs; nothing was changed "
                "there; put that file back, or submit the other experiment as a new job, with a new --output"
            )
        return requests.from_document(document, read_arrays(directory, REQUEST_ARRAYS))
    except InvalidJob:
        raise
    except (CorruptData, InvalidRequest) as error:
        raise InvalidJob(f"the request of {directory} cannot be used: {error.message}") from None


def read_outcome(directory: Path) -> outcomes.Outcome:
    """The result of a complete job; raises ``InvalidJob``, which for another one says what state it is in."""
    status = read_status(directory)
    if status.state != "COMPLETE":
        raise InvalidJob(f"job {directory.name} has no result: {told_state(status)}", state=status.state)
    try:
        return outcomes.from_document(read_json(directory, OUTCOME), read_arrays(directory, OUTCOME_ARRAYS))
    except InvalidJob:
        raise
    except (CorruptData, InvalidRequest) as error:
        raise InvalidJob(f"the result of {directory} cannot be used: {error.message}") from None


def told_state(status: JobStatus) -> str:
    """The state of a job in a sentence's end."""
    reason = f": {status.reason}" if status.reason else ""
    return f"it is {status.state}{reason}"


def read_events(directory: Path, after: int = 0) -> list[Event]:
    """The history from event number ``after`` on; a line that is not whole yet is left out, and so is one that is damaged."""
    try:
        lines = (directory / EVENTS).read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    return [event for line in lines if (event := _event(line)) is not None][after:]


def _last_event(directory: Path) -> Event | None:
    """The newest event; None where there is none, or it is not whole."""
    try:
        with (directory / EVENTS).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_EVENT))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    return _event(lines[-2]) if len(lines) > 1 and not lines[-1] else None


def _event(line: bytes) -> Event | None:
    try:
        values = json.loads(line)
        return None if plain_values.faults(Event, values) else Event(**values)
    except (ValueError, RecursionError):
        return None


def directories(folder: Path) -> Iterator[Path]:
    """The job directories that lie directly in a folder, in the order of their names, and the folder if it is one itself."""
    if (folder / MANIFEST).is_file():
        yield folder
        return
    try:
        with os.scandir(folder) as found:
            paths = sorted(entry.path for entry in found if not entry.name.startswith(".") and entry.is_dir())
    except OSError as error:
        raise InvalidRequest(f"the folder {folder} cannot be listed: {error.strerror}") from None
    yield from (Path(path) for path in paths if os.path.exists(f"{path}/{MANIFEST}"))


def error_of(status: JobStatus) -> PhalanxError:
    """The error that ended a job, as its status names it."""
    return from_name(status.error, status.reason or f"job {status.job} is {status.state}")


def from_name(name: str | None, message: str) -> PhalanxError:
    """An error of the family by its class's name; one that is not known becomes a plain ``PhalanxError``."""
    document: Mapping[str, Any] = {"error": name, "message": message, "details": {}}
    return from_wire(json.dumps(document).encode())
