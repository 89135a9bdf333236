"""The folder of a new job, and what is said where one cannot be made or written."""

import os
from pathlib import Path

from phalanx_coordinator.job_directory.whole_files import flush_folder
from phalanx_proto import job_lock
from phalanx_proto.errors import InvalidRequest, JobBusy, Unavailable
from phalanx_proto.job_lock import JobLock


def claim(path: Path) -> JobLock:
    """Make the folder of a new job (0700) and hold it.

    One that is empty, or has nothing but a lock that nobody holds, was left by a submitter that was killed, and is as good
    as new. Raises ``InvalidRequest`` where it cannot be made, ``Unavailable`` where it cannot be written.
    """
    try:
        path.mkdir(mode=0o700, parents=False)
        flush_folder(path.parent)
    except FileExistsError:
        if not _is_left(path):
            raise _there(path) from None
    except OSError as error:
        raise InvalidRequest(f"the output directory {path} cannot be made: {error.strerror}") from None
    try:
        lock = JobLock.take(path, patience=0.0)
    except JobBusy:  # another one makes a job of it at this moment
        raise _there(path) from None
    except OSError as error:
        raise unwritable(path, job_lock.NAME, error) from None
    if not _is_left(path):
        lock.release()
        raise _there(path)
    path.chmod(0o700)
    return lock


def _is_left(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid() and set(os.listdir(path)) <= {job_lock.NAME}
    except OSError:
        return False


def _there(path: Path) -> InvalidRequest:
    return InvalidRequest(f"the output directory {path} is there already; name a new one")


def unwritable(path: Path, name: str, error: OSError) -> Unavailable:
    """The error of a job that ends since a file of it cannot be written."""
    reason = f"{name} cannot be written in the output directory {path}: {error.strerror or error}"
    return Unavailable(f"{reason}; the job ends without a result")


def unchangeable(path: Path, name: str, error: OSError) -> Unavailable:
    """The error of a job that cannot be taken over since its directory cannot be written."""
    return Unavailable(
        f"{name} cannot be written in the job directory {path}: {error.strerror or error}; nothing was changed there; let it "
        "be written, and try again"
    )
