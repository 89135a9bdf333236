"""The two files of a checkpoint: arrays one after another, and a manifest that proves itself."""

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import tensors
from phalanx_proto.errors import CorruptData

ARRAYS, MANIFEST = "arrays.npy", "manifest.json"
PIECE = 16 << 20
"""Bytes of one write."""
Piece = bytes | memoryview


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Write a new file; returns its length, its SHA-256 and the arrays in it. The digest is made beside the writing."""
    pieces, listed = list[Piece](), []
    for name, array in arrays.items():
        found = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(found))
        pieces += [head.getvalue(), tensors.encode(found)[2]]
        listed.append({"name": name, "dtype": found.dtype.name, "shape": list(found.shape)})
    with ThreadPoolExecutor(1, "phalanx-digest") as beside:
        digest = beside.submit(_digest, pieces)
        length = write_file(path, pieces)
    return {"bytes": length, "sha256": digest.result(), "listed": listed}


def _digest(pieces: Sequence[Piece]) -> str:
    state = hashlib.sha256()
    for piece in pieces:
        state.update(piece)
    return state.hexdigest()


def write_file(path: Path, pieces: Sequence[Piece]) -> int:
    """Write a new file of mode 0600 and bring it to the disk; returns its length."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        length = 0
        for piece in pieces:
            view = memoryview(piece)
            length += view.nbytes
            while view.nbytes:
                view = view[os.write(descriptor, view[:PIECE]) :]
        os.fsync(descriptor)
        return length
    finally:
        os.close(descriptor)


def read_arrays(path: Path, written: Any) -> dict[str, NDArray[Any]]:
    """The arrays that ``write_arrays`` wrote; raises ``CorruptData`` where the file is another, and OSError."""
    try:
        length, digest, listed = int(written["bytes"]), str(written["sha256"]), list(written["listed"])
        with path.open("rb") as file:
            held = os.fstat(file.fileno()).st_size
            if held != length:
                raise CorruptData(f"{path.name} has {held} bytes, and {length} were written")
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise CorruptData(f"{path.name} does not match its digest")
            file.seek(0)
            found = {str(entry["name"]): np.lib.format.read_array(file, allow_pickle=False) for entry in listed}
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"{path.name} cannot be read: {error}") from None
    for entry in listed:
        array = found[entry["name"]]
        if [array.dtype.name, list(array.shape)] != [entry["dtype"], entry["shape"]]:
            raise CorruptData(f"{path.name}: {entry['name']} is {array.dtype.name}{list(array.shape)}, and not as listed")
    return found


def sealed(document: Mapping[str, Any], number: int) -> bytes:
    """The text of a manifest of format ``number``, with its own digest; this frame is the same in every format."""
    digest = tensors.digest_bytes(_text({"format": number, "checkpoint": document}))
    return _text({"format": number, "sha256": digest, "checkpoint": document})


def unsealed(text: bytes) -> tuple[int, Mapping[str, Any]]:
    """(format, document) of a manifest; raises ``CorruptData`` unless it is, to the byte, what ``sealed`` made."""
    try:
        frame = json.loads(text)
        number, document = int(frame["format"]), dict(frame["checkpoint"])
        sound = sealed(document, number) == text
    except (ValueError, KeyError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise CorruptData(f"{MANIFEST} does not match its digest")
    return number, document


def _text(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def sync_folder(path: Path) -> None:
    """Bring a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
