"""What the libraries that are installed know, looked up in their files without loading them."""

import functools
import importlib.util
import mmap
from pathlib import Path


@functools.cache
def library_knows(package: str, pattern: str, word: str) -> bool:
    """Whether a shared library of ``package``, among those that match ``pattern`` below it, holds ``word``."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return False
    return any(_holds(library, word.encode()) for library in sorted(Path(found.origin).parent.glob(pattern)))


def _holds(library: Path, text: bytes) -> bool:
    if not library.stat().st_size:
        return False
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return view.find(text) >= 0
