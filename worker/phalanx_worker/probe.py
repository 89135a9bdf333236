"""One measurement of the way to this worker, as its service counts it. Pure, but for the bytes, which are random."""

import functools
import os
from collections.abc import Iterator

from phalanx_proto.errors import InvalidRequest

PIECE = 1 << 20
"""Bytes of one message of an answer."""
MAX_REQUEST = 4 << 20
MAX_ANSWER = 64 << 20
MAX_STREAM = 1 << 30
"""Bytes of one stream, either way."""


@functools.cache
def _incompressible() -> bytes:
    """What an ssh that compresses cannot make shorter."""
    return os.urandom(PIECE)


class Probe:
    """Counts the bytes of one stream and makes its answers."""

    def __init__(self) -> None:
        self.received = 0
        self._sent = 0

    def take(self, size: int) -> None:
        """A request brought ``size`` bytes; raises ``InvalidRequest`` for too many."""
        if size > MAX_REQUEST:
            raise InvalidRequest(f"{size} bytes came in one request of a measurement; at most {MAX_REQUEST} may")
        self.received += size
        if self.received > MAX_STREAM:
            raise InvalidRequest(f"more than {MAX_STREAM} bytes came in one measurement")

    def answer(self, size: int) -> Iterator[tuple[bytes, bool]]:
        """Pieces of together ``size`` bytes, and whether each is the last; raises ``InvalidRequest`` for too many."""
        if size > MAX_ANSWER:
            raise InvalidRequest(f"an answer of {size} bytes is asked for; at most {MAX_ANSWER} may be")
        self._sent += size
        if self._sent > MAX_STREAM:
            raise InvalidRequest(f"more than {MAX_STREAM} bytes are asked for in one measurement")
        source = memoryview(_incompressible())
        while size > PIECE:
            yield bytes(source), False
            size -= PIECE
        yield bytes(source[:size]), True
