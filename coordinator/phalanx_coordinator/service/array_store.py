"""Arrays of requests on disk, by the SHA-256 of their bytes: a dataset travels once, and survives the service."""

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from phalanx_proto import tensors
from phalanx_proto.errors import CorruptData, InvalidRequest, Unavailable, UnknownDigest

LIMIT = 16 << 30
"""Bytes kept; the ones that were not used for longest go first."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ArrayStore:
    """A folder of files named by their digest."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self._folder, self._limit = folder, limit
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.glob(".arriving-*"):
            left.unlink(missing_ok=True)

    def missing(self, digests: Sequence[str]) -> list[str]:
        """Those that are not here, in the order asked; the others count as used now."""
        absent = []
        for digest in digests:
            try:
                os.utime(self._path(digest))
            except FileNotFoundError:
                absent.append(digest)
        return absent

    def receive(self, digest: str, length: int) -> "ArrayArrival":
        """Room for one array of ``length`` bytes; raises ``InvalidRequest``."""
        self._path(digest)
        if length > self._limit:
            raise InvalidRequest(f"an array of {length} bytes is above this service's limit of {self._limit} bytes")
        return ArrayArrival(self._folder, digest, length)

    def keep(self, arrival: "ArrayArrival") -> bool:
        """Store a whole array; False if it was here. Raises ``CorruptData``, ``Unavailable``."""
        path = self._path(arrival.digest)
        new = not path.exists()
        arrival.settle(path)
        self._make_room(path)
        return new

    def read(self, digest: str) -> memoryview:
        """The bytes of one array, compared with their digest; raises ``UnknownDigest``, ``CorruptData``."""
        path = self._path(digest)
        try:
            data = np.fromfile(path, np.uint8)
        except FileNotFoundError:
            raise UnknownDigest(f"this service holds no array {digest[:12]}; put it first", digest=digest) from None
        if tensors.digest_bytes(data.data) != digest:
            path.unlink(missing_ok=True)
            raise CorruptData(f"the array {digest[:12]} was damaged on this service's disk; put it again")
        return data.data

    def _path(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise InvalidRequest(f"{digest!r:.40} is not a SHA-256 in hexadecimal")
        return self._folder / digest

    def _make_room(self, newest: Path) -> None:
        held = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(self._folder))
        excess = sum(size for _, size, _ in held) - self._limit
        for _, size, path in held:
            if excess <= 0:
                return
            if path != str(newest):
                os.unlink(path)
                excess -= size


class ArrayArrival:
    """An array on its way to the disk."""

    def __init__(self, folder: Path, digest: str, length: int) -> None:
        self.digest = digest
        self._length, self._received, self._state = length, 0, hashlib.sha256()
        try:
            descriptor, name = tempfile.mkstemp(prefix=".arriving-", dir=folder)
        except OSError as error:
            raise Unavailable(f"the array cannot be written: {error.strerror}") from None
        self._file, self._path = os.fdopen(descriptor, "wb"), Path(name)

    def add(self, offset: int, data: tensors.Data, checksum: int) -> None:
        """Take the next chunk; raises ``CorruptData``."""
        if offset != self._received or offset + len(data) > self._length or not data:
            raise CorruptData(f"the chunk at offset {offset} of {self._length} bytes does not follow {self._received} bytes")
        if tensors.checksum(data) != checksum:
            raise CorruptData(f"the chunk at offset {offset} does not match its checksum")
        self._state.update(data)
        self._received += len(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise Unavailable(f"the array cannot be written: {error.strerror}; make room and put it again") from None

    def settle(self, path: Path) -> None:
        """Have it on disk under its name; raises ``CorruptData`` where it is another array or not whole."""
        if self._received != self._length or self._state.hexdigest() != self.digest:
            raise CorruptData(f"the array {self.digest[:12]} did not come as its header said")
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._path.replace(path)
        except OSError as error:
            raise Unavailable(f"the array cannot be written: {error.strerror}; make room and put it again") from None

    def abandon(self) -> None:
        """Close it; what was not settled goes."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)
