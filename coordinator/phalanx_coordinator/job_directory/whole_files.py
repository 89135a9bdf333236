"""Files that a reader sees whole or not at all: written beside, flushed to the disk, renamed, and the folder flushed."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from phalanx_proto.result import to_text


def write_whole(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a JSON file at once: a reader sees the old one or the new one, whatever happens to us."""
    text = to_text(document).encode()
    _replace(path, lambda file: file.write(text))


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Replace an ``.npz`` file at once."""
    _replace(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def _replace(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    temporary = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
