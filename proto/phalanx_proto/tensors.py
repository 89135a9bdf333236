"""The one codec between arrays and (dtype name, shape, little-endian bytes); nothing is ever pickled.

Large values travel as chunks, each with its offset and checksum, and are put together by an ``Assembler``.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from phalanx_proto import experiment
from phalanx_proto.errors import CorruptData, InvalidRequest

TensorType = Literal["float32", "float64", "int32", "int64", "uint32", "uint8"]
Data = bytes | bytearray | memoryview

CHUNK = 2 << 20
"""Bytes of one chunk: 1 to 4 MiB move fastest over a Unix socket."""
MAX_BYTES = 64 << 30
"""Bytes of the largest array that is taken where the caller names no smaller limit."""

_WIRE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "uint32": np.dtype("<u4"),
    "uint8": np.dtype("u1"),
}
_NATIVE = {wire.newbyteorder("="): wire for wire in _WIRE.values()}
"""By an array's dtype, since asking NumPy for the name costs more than the rest of an encoding."""
if set(_WIRE) != set(get_args(TensorType)) or any(kind.name != name for name, kind in _WIRE.items()):
    raise ImportError("the tensor codec does not cover its own list of dtypes")
if not set(experiment.DTYPES) <= set(_WIRE):
    raise ImportError("the tensor codec lacks a group dtype")


def encode(array: NDArray[Any]) -> tuple[str, tuple[int, ...], memoryview]:
    """(dtype name, shape, bytes in row-major order); no copy where the array is laid out that way already."""
    wire = _NATIVE.get(array.dtype) or _wire(array.dtype.name)
    flat = np.ascontiguousarray(array, wire).reshape(-1)
    return wire.name, array.shape, flat.view(np.uint8).data


def decode(dtype: str, shape: Sequence[int], data: Data, limit: int = MAX_BYTES) -> NDArray[Any]:
    """The array over the memory of ``data``: no copy, and read-only where ``data`` is.

    Raises ``InvalidRequest`` for an unknown dtype, an impossible shape or more than ``limit`` bytes, ``CorruptData``
    where the number of bytes is not the shape's.
    """
    size = byte_size(dtype, shape, limit)
    held = memoryview(data).nbytes
    if held != size:
        raise CorruptData(f"{dtype}{list(shape)} takes {size} bytes, but {held} came")
    wire = _wire(dtype)
    flat = np.frombuffer(data, wire) if size else np.empty(0, wire)
    return flat.astype(wire.newbyteorder("="), copy=False).reshape(tuple(shape))


def byte_size(dtype: str, shape: Sequence[int], limit: int = MAX_BYTES) -> int:
    """Bytes of an array; ``InvalidRequest`` if there can be no such array within ``limit`` bytes."""
    itemsize = _wire(dtype).itemsize
    if len(shape) > 32 or any(length < 0 for length in shape):
        raise InvalidRequest(f"an array cannot have the shape {list(shape)[:33]}")
    size = math.prod(shape) * itemsize
    if size > limit:
        raise InvalidRequest(f"{dtype}{list(shape)} takes {size} bytes; at most {limit} are taken")
    return size


def _wire(name: str) -> np.dtype[Any]:
    if name not in _WIRE:
        raise InvalidRequest(f"arrays of {name} do not travel; use one of {', '.join(_WIRE)}")
    return _WIRE[name]


def digest(array: NDArray[Any]) -> str:
    """SHA-256, in hex, of an array's dtype, shape and exact bytes."""
    dtype, shape, data = encode(array)
    state = hashlib.sha256(f"{dtype}{list(shape)}\n".encode())
    state.update(data)
    return state.hexdigest()


def digest_bytes(data: Data) -> str:
    """SHA-256, in hex, of exact bytes."""
    return hashlib.sha256(data).hexdigest()


def fingerprint(*arrays: NDArray[Any], tag: str) -> str:
    """SHA-256, in hex, of several arrays in order, with a tag that says what they are."""
    return digest_bytes(json.dumps([tag, *(digest(array) for array in arrays)]).encode())


def checksum(data: Data) -> int:
    """XXH3 of one chunk, 64 bits: finds accidents, not forgeries."""
    return xxhash.xxh3_64_intdigest(data)


def chunks(data: Data, size: int = CHUNK) -> Iterator[memoryview]:
    """Consecutive views of at most ``size`` bytes, without copying; none for no bytes."""
    if size < 1:
        raise InvalidRequest(f"a chunk of {size} bytes cannot be")
    view = memoryview(data).cast("B")
    return (view[start : start + size] for start in range(0, len(view), size))


def offsets(array: NDArray[Any]) -> Iterator[tuple[int, memoryview]]:
    """(offset, bytes) of each chunk of an array, in order; none for no bytes."""
    _, _, data = encode(array)
    offset = 0
    for piece in chunks(data):
        yield offset, piece
        offset += piece.nbytes


class Assembler:
    """Puts ``length`` bytes together from chunks that come in order, into ``out`` or into memory of its own.

    ``CorruptData`` names the offset of the first chunk that does not fit; what was put together before stays as it was.
    """

    def __init__(self, length: int, out: bytearray | memoryview | None = None, limit: int = MAX_BYTES) -> None:
        if not 0 <= length <= limit:
            raise InvalidRequest(f"{length} bytes cannot be taken; from 0 to {limit} can")
        view = np.empty(length, np.uint8).data if out is None else memoryview(out)
        if view.readonly or view.nbytes < length:
            raise InvalidRequest(f"{length} bytes need a writable buffer as long, not one of {view.nbytes} bytes")
        self.length = length
        self.received = 0
        """Bytes taken so far, which is the offset of the next chunk."""
        self._view = view.cast("B")[:length] if length else memoryview(b"")

    @property
    def complete(self) -> bool:
        """Whether every byte is there."""
        return self.received == self.length

    def add(self, offset: int, data: Data, sum64: int) -> None:
        """Take the next chunk; ``sum64`` is its ``checksum``."""
        size = memoryview(data).nbytes
        if offset != self.received:
            kind = "overlaps" if offset < self.received else "leaves a gap"
            raise self._fault(offset, f"{kind}: {self.received} bytes are here")
        if offset + size > self.length:
            raise self._fault(offset, f"runs over: {size} bytes came, {self.length - offset} were to come")
        if size == 0 and self.length:
            raise self._fault(offset, "is empty")
        if checksum(data) != sum64:
            raise self._fault(offset, "does not match its checksum")
        if size:
            self._view[offset : offset + size] = memoryview(data).cast("B")
        self.received += size

    def finish(self) -> memoryview:
        """The bytes; ``CorruptData`` if some are missing."""
        if not self.complete:
            raise self._fault(self.received, f"is missing: {self.length - self.received} bytes did not come")
        return self._view

    def _fault(self, offset: int, what: str) -> CorruptData:
        return CorruptData(f"the chunk at offset {offset} of {self.length} {what}", offset=offset, length=self.length)
