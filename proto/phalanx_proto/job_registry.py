"""Which job directories a user has, wherever they lie: a folder of links in the user's state directory.

It is a convenience: a job whose link cannot be written runs all the same, and a link to what is gone is taken away.
"""

import contextlib
import hashlib
import os
from pathlib import Path

from phalanx_proto.user_directories import state_directory


def folder() -> Path:
    """Where the links are."""
    return state_directory() / "jobs"


def remember(directory: Path) -> None:
    """Note a job's directory."""
    target = str(directory.absolute())
    link = folder() / hashlib.sha256(target.encode()).hexdigest()[:32]
    with contextlib.suppress(OSError):
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.symlink(target, link)


def known() -> list[Path]:
    """The job directories that were noted and are still there, in the order of their paths."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder()) as links:
        for link in links:
            with contextlib.suppress(OSError):
                target = os.readlink(link.path)
                if os.path.isdir(target):
                    found.append(Path(target))
                elif os.path.isdir(os.path.dirname(target)):  # else its disk may only be away
                    os.unlink(link.path)
    return sorted(found)
