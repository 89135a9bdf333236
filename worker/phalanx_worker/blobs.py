"""What a worker holds by digest: bytes in shared memory, put together chunk by chunk, the least used ones let go."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import tensors
from phalanx_proto.errors import CorruptData, InvalidRequest, UnknownDigest
from phalanx_worker.arena import Arena

MOST = 64
"""Blobs held at once: each one takes a file descriptor. A run has four."""


class BlobStore:
    """Blobs by SHA-256 of their bytes, at most ``limit`` bytes in all and ``MOST`` in number."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: OrderedDict[str, tuple[Arena, int]] = OrderedDict()

    def missing(self, digests: Sequence[str]) -> list[str]:
        """Those that are not here, in the order asked; the others are let go last, since they are about to be used."""
        for digest in digests:
            if digest in self._held:
                self._held.move_to_end(digest)
        return [digest for digest in digests if digest not in self._held]

    def receive(self, digest: str, length: int) -> "Arrival":
        """Room for one blob of ``length`` bytes."""
        if length > self.limit:
            raise InvalidRequest(f"a blob of {length} bytes is above this worker's limit of {self.limit} bytes")
        return Arrival(digest, length)

    def keep(self, arrival: "Arrival") -> bool:
        """Store a complete blob; False if it was here already. Raises CorruptData if the digest is another."""
        found = tensors.digest_bytes(arrival.assembler.finish())
        if found != arrival.digest:
            raise CorruptData(f"a blob came as {found[:12]}, its header said {arrival.digest[:12]}")
        if arrival.digest in self._held:
            return False
        self._held[arrival.digest] = (arrival.arena, arrival.length)
        while len(self._held) > MOST or sum(length for _, length in self._held.values()) > self.limit:
            self._held.popitem(last=False)[1][0].close()
        return True

    def _find(self, digest: str) -> tuple[Arena, int]:
        if digest not in self._held:
            raise UnknownDigest(f"this worker holds no blob {digest[:12]}; send it first", digest=digest)
        self._held.move_to_end(digest)
        return self._held[digest]

    def bytes(self, digest: str) -> bytes:
        """A copy of one blob."""
        arena, length = self._find(digest)
        return arena["bytes"][:length].tobytes()

    def array(self, digest: str, name: str, dtype: str, shape: Sequence[int]) -> Arena:
        """One blob as an arena that holds the array ``name``; the caller closes it."""
        arena, length = self._find(digest)
        size = tensors.byte_size(dtype, shape)
        if size != length:
            raise InvalidRequest(f"{name}: {dtype}{list(shape)} takes {size} bytes, blob {digest[:12]} has {length}")
        return arena.renamed(name, tuple(shape), dtype)

    def close(self) -> None:
        """Forget everything."""
        for arena, _ in self._held.values():
            arena.close()
        self._held.clear()


class Arrival:
    """A blob on its way in."""

    def __init__(self, digest: str, length: int) -> None:
        self.digest, self.length = digest, length
        self.arena = Arena.create({"bytes": ((max(length, 1),), np.uint8)})
        view: NDArray[Any] = self.arena["bytes"][:length]
        self.assembler = tensors.Assembler(length, out=view.data)

    def abandon(self) -> None:
        """Give the memory back."""
        self.arena.close()
