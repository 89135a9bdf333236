"""Arrays beside a JSON document: the document says of each its dtype, shape and SHA-256; the bytes lie or travel elsewhere."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import tensors
from phalanx_proto.errors import CorruptData

Arrays = Mapping[str, NDArray[Any]]
KEY = "arrays"
"""Where a document says which arrays belong to it."""


@dataclass(frozen=True, kw_only=True)
class ArrayEntry:
    """What a document says of one array."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    """Of the bytes, little-endian and row-major: equal bytes are one blob, whoever sends them."""


def describe(arrays: Arrays) -> dict[str, Any]:
    """The entry of each array, as JSON values; raises ``InvalidRequest`` for a dtype that does not travel."""
    found = {}
    for name, array in arrays.items():
        dtype, shape, data = tensors.encode(array)
        found[name] = asdict(ArrayEntry(dtype=dtype, shape=tuple(shape), sha256=tensors.digest_bytes(data)))
    return found


def entries(document: Mapping[str, Any]) -> dict[str, ArrayEntry]:
    """The entries that a document holds; raises ``CorruptData`` where they cannot be read."""
    try:
        return {
            str(name): ArrayEntry(
                dtype=str(entry["dtype"]), shape=tuple(int(length) for length in entry["shape"]), sha256=str(entry["sha256"])
            )
            for name, entry in document[KEY].items()
        }
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        raise CorruptData("the document does not say which arrays belong to it") from None


def checked(document: Mapping[str, Any], arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays of a document, each compared with its entry; raises ``CorruptData`` naming the first that differs."""
    found: dict[str, NDArray[Any]] = {}
    for name, entry in entries(document).items():
        if name not in arrays:
            raise CorruptData(f"the array {name} is missing")
        dtype, shape, data = tensors.encode(arrays[name])
        if (dtype, tuple(shape), tensors.digest_bytes(data)) != (entry.dtype, entry.shape, entry.sha256):
            raise CorruptData(f"the array {name} is not the one that was written: its bytes have another digest")
        found[name] = arrays[name]
    return found


def from_blobs(
    document: Mapping[str, Any], blobs: Mapping[str, tensors.Data], limit: int = tensors.MAX_BYTES
) -> dict[str, NDArray[Any]]:
    """The arrays of a document over blobs by SHA-256, which the caller has verified; read-only where the blobs are.

    Raises ``CorruptData`` and ``InvalidRequest``, as ``tensors.decode`` does.
    """
    return {
        name: tensors.decode(entry.dtype, entry.shape, blobs[entry.sha256], limit) for name, entry in entries(document).items()
    }


def as_blobs(arrays: Arrays) -> dict[str, memoryview]:
    """The bytes of each array by their SHA-256; equal bytes once."""
    views = [tensors.encode(array)[2] for array in arrays.values()]
    return {tensors.digest_bytes(view): view for view in views}


def of_bytes(data: bytes) -> NDArray[Any]:
    """Bytes as an array [length] of uint8."""
    return np.frombuffer(data, np.uint8)
