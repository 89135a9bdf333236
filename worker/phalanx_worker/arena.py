"""Anonymous shared memory between the processes of one machine: named arrays in one unlinked file.

The file has no name, so nothing is left behind whatever dies; it travels as a file descriptor (``SCM_RIGHTS``).
"""

import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 128
"""Bytes; every array starts on its own pair of cache lines, and XLA takes it without a copy."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where one array lies in the arena."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("phalanx", os.MFD_CLOEXEC)
    else:  # macOS: an unlinked temporary file is the nearest thing
        with tempfile.TemporaryFile(prefix="phalanx-") as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class Arena:
    """Named arrays in one shared mapping. Create it in the parent, ``attach`` it in the child."""

    def __init__(self, descriptor: int, layout: Mapping[str, Placement], size: int) -> None:
        self.descriptor = descriptor
        self.layout = dict(layout)
        self.size = size
        self._map = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, arrays: Mapping[str, tuple[tuple[int, ...], DTypeLike]]) -> "Arena":
        """Zeroed arrays of the given shapes and dtypes."""
        layout: dict[str, Placement] = {}
        offset = 0
        for name, (shape, dtype) in arrays.items():
            kind = np.dtype(dtype)
            layout[name] = Placement(offset=offset, shape=tuple(shape), dtype=kind.str)
            nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
        size = max(offset, mmap.PAGESIZE)
        return cls(_anonymous_file(size), layout, size)

    @classmethod
    def attach(cls, descriptor: int, description: Mapping[str, Any]) -> "Arena":
        """The arena that another process described with ``describe``; takes over the descriptor."""
        layout = {
            name: Placement(offset=int(p["offset"]), shape=tuple(p["shape"]), dtype=str(p["dtype"]))
            for name, p in description["layout"].items()
        }
        return cls(descriptor, layout, int(description["size"]))

    def describe(self) -> dict[str, Any]:
        """JSON values that ``attach`` reads."""
        layout = {n: {"offset": p.offset, "shape": list(p.shape), "dtype": p.dtype} for n, p in self.layout.items()}
        return {"size": self.size, "layout": layout}

    def __getitem__(self, name: str) -> NDArray[Any]:
        place = self.layout[name]
        count = math.prod(place.shape)
        flat = np.frombuffer(self._map, np.dtype(place.dtype), count, place.offset)
        return flat.reshape(place.shape)

    def __contains__(self, name: str) -> bool:
        return name in self.layout

    def renamed(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> "Arena":
        """The same memory from its start as one array of another name and type; has a descriptor of its own."""
        layout = {name: Placement(offset=0, shape=shape, dtype=np.dtype(dtype).str)}
        return Arena(os.dup(self.descriptor), layout, self.size)

    def close(self) -> None:
        """Close the descriptor; the mapping goes when the last view of it is dropped."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
