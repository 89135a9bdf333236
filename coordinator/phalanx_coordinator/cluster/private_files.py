"""Files that only their owner may read: made new, or replaced whole; what is there is never half of either."""

import contextlib
import os
import secrets
import shlex
from pathlib import Path

from phalanx_proto.errors import InvalidRequest


def create_private(path: Path, text: str) -> None:
    """A new file of mode 0600. Raises ``InvalidRequest`` if something is there, or it cannot be written."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise InvalidRequest(f"{shlex.quote(str(path))} is there already; name a new file") from None
    except OSError as error:
        raise InvalidRequest(f"{shlex.quote(str(path))} cannot be written: {error.strerror}") from None
    try:
        _fill(descriptor, text)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise InvalidRequest(f"{shlex.quote(str(path))} cannot be written: {error.strerror}") from None


def replace_private(path: Path, text: str) -> None:
    """The file with a new content, mode 0600; a link stays a link. Raises ``InvalidRequest``, with the old file as it was."""
    target = path.resolve()
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    create_private(fresh, text)
    try:
        fresh.replace(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # not every file system can
            os.fsync(folder)
        os.close(folder)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise InvalidRequest(f"{shlex.quote(str(path))} cannot be replaced: {error.strerror}") from None


def _fill(descriptor: int, text: str) -> None:
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
