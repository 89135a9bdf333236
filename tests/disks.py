"""A disk that can be filled: a small file system of its own or, where none may be mounted, a limit to the length of files."""

import contextlib
import resource
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SIZE = 1 << 18
"""Bytes."""


@dataclass(frozen=True)
class SmallDisk:
    """A folder on it."""

    folder: Path
    mounted: bool

    def fill(self) -> None:
        """Leave no room at all."""
        if not self.mounted:
            limit(1)
            return
        with contextlib.suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))

    def free(self) -> None:
        """Make room again."""
        if self.mounted:
            (self.folder / "filler").unlink()
        else:
            limit(SIZE)


def limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """A disk of 256 KiB below ``folder``."""
    place = folder / "small"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", place], capture_output=True, check=False)
    if made.returncode == 0:
        try:
            yield SmallDisk(place, mounted=True)
        finally:
            subprocess.run(["umount", place], check=True)
        return
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE)[0], signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit(SIZE)
    try:
        yield SmallDisk(place, mounted=False)
    finally:
        limit(before)
        signal.signal(signal.SIGXFSZ, ignored)
