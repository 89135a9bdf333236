"""The chunks of a simulation: handed out, counted exactly once, kept for a later run. Pure bookkeeping, no clock, no I/O.

What is late, repeated or from an earlier life of a member is dropped and counted; what contradicts the plan raises
``LedgerMismatch``, as in ``ledger``.
"""

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import Any

from phalanx_proto.blocks import Range
from phalanx_proto.errors import CorruptData, InvalidRequest, LedgerMismatch

MAX_CHUNKS = 1_000_000


class ChunkLedger:
    """The chunks of a simulation over samples [0, samples), handed out on demand and counted once.

    It remembers only what is handed out or given back, not what is done.
    """

    def __init__(self, samples: int, chunk: int) -> None:
        if samples < 1 or chunk < 1:
            raise InvalidRequest(f"{samples} samples in chunks of {chunk}: both must be at least 1")
        self.total = samples
        self.chunk = chunk
        self.chunks = -(-samples // chunk)
        """Number of chunks."""
        if self.chunks > MAX_CHUNKS:
            least = -(-samples // MAX_CHUNKS)
            raise InvalidRequest(
                f"{samples} samples in chunks of {chunk} are {self.chunks} chunks, at most {MAX_CHUNKS} are kept: "
                f"the smallest chunk that fits is {least}",
                smallest=least,
            )
        self.hits = 0
        self.samples = 0
        """Samples accepted so far."""
        self.dropped = 0
        """Replies that came late or again."""
        self.by_member: Counter[str] = Counter()
        """Accepted samples by member."""
        self._next = 0
        self._owner: dict[int, str] = {}
        self._returned: list[int] = []

    @property
    def handed_out(self) -> int:
        """Chunks that were handed out at least once."""
        return self._next

    @property
    def returned(self) -> int:
        """Chunks that have to be handed out again: of lost members, or owed when a run ended that this one goes on from."""
        return len(self._returned)

    @property
    def done(self) -> bool:
        """Whether every sample is accounted."""
        return self.samples == self.total

    def state(self) -> dict[str, Any]:
        """What a later ``restore`` needs, as JSON values; chunks that are owed now will have to be handed out again."""
        return {
            "total": self.total, "chunk": self.chunk, "handed_out": self._next,
            "owed": sorted([*self._owner, *self._returned]), "samples": self.samples, "hits": self.hits,
            "dropped": self.dropped, "by_member": dict(self.by_member),
        }  # fmt: skip

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> "ChunkLedger":
        """The ledger that ``state`` described, with nothing handed out; raises ``CorruptData`` if it does not add up."""
        try:
            ledger = cls(int(state["total"]), int(state["chunk"]))
            ledger._next, ledger._returned = int(state["handed_out"]), sorted({int(index) for index in state["owed"]})
            ledger.samples, ledger.hits, ledger.dropped = (int(state[name]) for name in ("samples", "hits", "dropped"))
            ledger.by_member.update({str(name): int(count) for name, count in state["by_member"].items()})
        except (KeyError, TypeError, ValueError, AttributeError, InvalidRequest) as error:
            raise CorruptData(f"the ledger of a simulation cannot be read: {error}") from None
        owed = ledger._returned
        if not 0 <= ledger._next <= ledger.chunks or (owed and not 0 <= owed[0] <= owed[-1] < ledger._next):
            raise CorruptData(f"the ledger of a simulation has chunks owed that were never handed out, of {ledger._next}")
        counted = min(ledger._next * ledger.chunk, ledger.total) - sum(hi - lo for lo, hi in map(ledger._range, owed))
        if not 0 <= ledger.hits <= ledger.samples == counted == sum(ledger.by_member.values()):
            raise CorruptData(f"the ledger of a simulation does not add up: {ledger.samples} samples of {counted}")
        return ledger

    def take(self, member: str) -> tuple[int, int, int] | None:
        """(index, start, stop) of the next chunk, now owed by ``member``; None where none is left to hand out."""
        if self._returned:
            index = heapq.heappop(self._returned)
        elif self._next < self.chunks:
            index, self._next = self._next, self._next + 1
        else:
            return None
        self._owner[index] = member
        return index, *self._range(index)

    def accept(self, member: str, index: int, start: int, stop: int, hits: int) -> bool:
        """Count a chunk; False where it is late or repeated, that is, no longer owed by ``member``.

        Raises ``LedgerMismatch`` for a chunk never handed out, another range than the chunk's, or impossible hits.
        """
        if not 0 <= index < self._next:
            raise LedgerMismatch(f"{member}: chunk {index} was never handed out", member=member, index=index)
        if self._owner.get(index) != member:
            self.dropped += 1
            return False
        if (start, stop) != self._range(index) or not 0 <= hits <= stop - start:
            wanted = "samples {} to {}".format(*self._range(index))
            text = f"{member}: chunk {index} is {wanted}, but {hits} hits in samples {start} to {stop} came"
            raise LedgerMismatch(text, member=member, index=index)
        del self._owner[index]
        self.hits += hits
        self.samples += stop - start
        self.by_member[member] += stop - start
        return True

    def give_back(self, member: str) -> tuple[int, ...]:
        """Queue what a lost member owes, lowest first, and return the indices."""
        owed = tuple(sorted(index for index, owner in self._owner.items() if owner == member))
        for index in owed:
            del self._owner[index]
            heapq.heappush(self._returned, index)
        return owed

    def _range(self, index: int) -> Range:
        return index * self.chunk, min((index + 1) * self.chunk, self.total)
