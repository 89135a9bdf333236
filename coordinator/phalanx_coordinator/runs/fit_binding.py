"""What a remote member needs to open a fit, made ready once: program and arrays by digest, and the canary it must show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.runs.plan import Plan
from phalanx_proto import tensors
from phalanx_proto.errors import AdmissionRefused


@dataclass(kw_only=True)
class FitBinding:
    """One fit, as members open it."""

    plan: Plan
    arrays: Mapping[str, NDArray[Any]]
    """x, y and the initial parameters, in the group dtype."""
    program: bytes
    """The gradient artifact."""
    canaries: dict[str, str] = field(default_factory=dict)
    """Digest of each member's canary."""

    def __post_init__(self) -> None:
        views = {name: tensors.encode(self.arrays[name])[2] for name in ("x", "y", "initial")}
        self._digests = {name: tensors.digest_bytes(view) for name, view in views.items()}
        self._program_digest = tensors.digest_bytes(self.program)
        self._blobs = {self._digests[name]: view for name, view in views.items()}
        self._blobs[self._program_digest] = memoryview(self.program)

    async def open(self, worker: RemoteWorker) -> None:
        """Send what the worker lacks, open the fit there and note its canary."""
        self.canaries[worker.name] = await self._opened(worker)

    async def open_again(self, worker: RemoteWorker, canonical: str) -> None:
        """The same for one that joins later: it must show its own canary of before, or the canonical one."""
        wanted = self.canaries.setdefault(worker.name, canonical)
        found = await self._opened(worker)
        if found != wanted:
            row = {"worker": worker.name, "field": "canary", "wanted": wanted[:16], "found": found[:16]}
            raise AdmissionRefused([row])

    async def _opened(self, worker: RemoteWorker) -> str:
        await worker.put_blobs(self._blobs)
        plan = self.plan
        return await worker.open(
            plan.spec.sizes, plan.schedule, self._program_digest, self.arrays, self._digests, plan.canary_rows()
        )
