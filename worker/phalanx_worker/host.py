"""What one engine process can be asked to do: a table of operations over JSON, payloads and arenas.

The same host serves an engine process (``engine_process``) and, in a worker's own process, the daemon. It is single-threaded.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
import psutil
from numpy.typing import NDArray

from phalanx_proto import tensors
from phalanx_proto.errors import InvalidRequest
from phalanx_proto.experiment import ProgramSpec, Sizes
from phalanx_proto.receipt import Receipt
from phalanx_proto.schedule import Schedule
from phalanx_worker import engine, lowering, selftest, simulation
from phalanx_worker.arena import Arena
from phalanx_worker.engine import FitEngine
from phalanx_worker.fit import CanonicalFit
from phalanx_worker.gang import Follower, Leader, Nodes
from phalanx_worker.mailbox import FitShape
from phalanx_worker.member_fit import MemberFit
from phalanx_worker.opening import FitOpening

KEPT_ENGINES = 12
"""Compiled programs of the last few fits are kept, so that a repeated fit starts at once."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The answer to one operation."""

    body: dict[str, Any]
    payload: bytes = b""


def pack_artifacts(artifacts: Mapping[str, bytes]) -> tuple[list[tuple[str, int]], bytes]:
    """An index of (name, length) and the bytes one after another."""
    return [(name, len(data)) for name, data in artifacts.items()], b"".join(artifacts.values())


def unpack_artifacts(index: Sequence[tuple[str, int]], payload: bytes) -> dict[str, bytes]:
    """What ``pack_artifacts`` packed."""
    found, start = {}, 0
    for name, length in index:
        found[name] = payload[start : start + length]
        start += length
    return found


class Host:
    """The state of one engine process: its device, its compiled programs, its one open fit."""

    def __init__(self, backend: str, ordinal: int, alive: Callable[[], None]) -> None:
        engine.configure()
        self._device = engine.find_device(backend, ordinal)
        self._alive = alive
        self._process = psutil.Process()
        self._engines: dict[str, FitEngine] = {}
        self._fit: CanonicalFit | MemberFit | None = None
        self._follower: Follower | None = None
        self._operations: dict[str, Callable[..., Reply]] = {
            "lower": self._lower, "open": self._open, "serve": self._serve, "canaries": self._canaries,
            "stretch": self._stretch, "part": self._part, "commit": self._commit, "diagnose": self._diagnose,
            "tallies": self._tallies, "parameters": self._parameters, "close": self._close,
            "save": self._save, "restore": self._restore, "score": self._score, "predict": self._predict,
            "simulate": self._simulate, "describe": self._describe,
        }  # fmt: skip

    @property
    def member(self) -> MemberFit:
        """The open fit of a worker."""
        if not isinstance(self._fit, MemberFit):
            raise InvalidRequest("no fit is open in this engine")
        return self._fit

    @property
    def canonical(self) -> CanonicalFit:
        """The open fit of the canonical engine."""
        if not isinstance(self._fit, CanonicalFit):
            raise InvalidRequest("no canonical fit is open in this engine")
        return self._fit

    def open_member(self, opening: FitOpening, work: Arena, data: Sequence[Arena]) -> None:
        """Bind a worker's fit, led by this engine."""
        self._fit = None
        arrays = {name: arena[name] for arena in data for name in arena.layout}
        own = self._engine(opening.sizes, opening.artifacts, opening.schedule.capacity)
        own.bind(arrays["x"], arrays["y"], opening.schedule.seed)
        leader = Leader(engine=own, arena=work, shape=opening.shape(), alive=self._alive, timeout=opening.timeout)
        self._fit = MemberFit(leader=leader)

    def canary(self, rows: NDArray[np.int32], parameters: NDArray[Any]) -> str:
        """Digest of the node of block 0 of update 0 at the initial parameters."""
        return self.member.canary(rows, parameters)

    def member_nodes(self, update: int, lo: int, hi: int, rows: NDArray[np.int32]) -> tuple[Nodes, Receipt]:
        """Nodes of a range of the update; the parameters lie in the work arena."""
        return self.member.nodes(update, lo, hi, rows)

    def simulate(self, start: int, stop: int, seed: int) -> tuple[int, int]:
        """(hits, nanoseconds) of samples [start, stop)."""
        return simulation.hits(self._device, start, stop, seed)

    def close_member(self) -> None:
        """Unbind the fit and let the followers go."""
        if self._fit is not None:
            self._fit.leader.release()
        self._fit = None

    def handle(self, body: Mapping[str, Any], payload: bytes = b"", descriptors: Sequence[int] = ()) -> Reply:
        """Carry out one operation. Raises PhalanxError; the host stays usable."""
        operation = self._operations.get(str(body.get("op")))
        if operation is None:
            raise InvalidRequest(f"an engine has no operation {body.get('op')!r}")
        return operation(body, payload, descriptors)

    def self_test(self) -> None:
        """Known answers; raises EngineFailed."""
        selftest.require()
        simulation.require()

    def _describe(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        device = {"platform": self._device.platform, "kind": self._device.device_kind, "id": self._device.id}
        return Reply(body={"pid": os.getpid(), "device": device, "jax": jax.__version__, "resident": self.resident()})

    def resident(self) -> int:
        """Resident memory of this process, in bytes."""
        return int(self._process.memory_info().rss)

    def _lower(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        spec = ProgramSpec.from_json(body["spec"])
        artifacts = lowering.lower(spec)
        index, data = pack_artifacts({name: artifact.data for name, artifact in artifacts.items()})
        digests = {name: artifact.digest for name, artifact in artifacts.items()}
        state = [shape[0] for shape in lowering.state_shapes(spec)]
        return Reply(body={"index": index, "digests": digests, "state": state}, payload=data)

    def _engine(self, sizes: Sizes, artifacts: Mapping[str, bytes], capacity: int) -> FitEngine:
        programs = {name: tensors.digest_bytes(data) for name, data in artifacts.items()}
        key = json.dumps([asdict(sizes), programs, capacity])
        found = self._engines.pop(key, None) or FitEngine(sizes, artifacts, self._device, capacity)
        self._engines[key] = found
        while len(self._engines) > KEPT_ENGINES:
            del self._engines[next(iter(self._engines))]
        return found

    def _open(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        """Bind a fit: descriptors are the work arena and the data arena; payload the artifacts."""
        self._fit = self._follower = None
        arenas = [Arena.attach(fd, text) for fd, text in zip(descriptors, (body["work"], *body["data"]), strict=True)]
        work, data = arenas[0], {name: arena[name] for arena in arenas[1:] for name in arena.layout}
        sizes = Sizes(**body["sizes"])
        schedule = Schedule(**body["schedule"])
        shape = FitShape(sizes=sizes, schedule=schedule, slots=body["slots"], held=body["held"], remote=body["remote"])
        own = self._engine(sizes, unpack_artifacts(body["index"], payload), schedule.capacity)
        own.bind(data["x"], data["y"], schedule.seed)
        for arena in arenas:
            arena.close()
        if body["role"] == "follower":
            self._follower = Follower(own, work, shape, body["slot"])
            return Reply(body={})
        leader = Leader(engine=own, arena=work, shape=shape, alive=self._alive, timeout=body["timeout"])
        self._fit = self._open_canonical(leader, data, body)
        return Reply(body={})

    def _open_canonical(self, leader: Leader, data: Mapping[str, Any], body: Mapping[str, Any]) -> CanonicalFit:
        validation = (data["vx"], data["vy"], int(body["validation_rows"])) if "vx" in data else None
        return CanonicalFit(
            leader=leader, initial=data["initial"], state_sizes=body["state"],
            weights=body["weights"], validation=validation, keep_best=body["keep_best"],
        )  # fmt: skip

    def _serve(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        if self._follower is None:
            raise InvalidRequest("this engine follows nobody")
        self._follower.serve(self._alive)
        self._follower = None
        return Reply(body={"resident": self.resident()})

    def _canaries(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        found = self.canonical.canaries()
        if body["node"]:
            self.canonical.canary_node(self.canonical.leader.arena["remote"][0])
        return Reply(body={"canaries": [asdict(canary) for canary in found]})

    def _stretch(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        return Reply(body=self.canonical.stretch(body["until"], body["seconds"]))

    def _part(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        self.canonical.part([(lo, hi) for lo, hi in body["ranges"]])
        return Reply(body={})

    def _commit(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        return Reply(body=self.canonical.commit([(lo, hi, index) for lo, hi, index in body["remote"]]))

    def _diagnose(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        found = self.canonical.diagnose()
        return Reply(body={"block": None if found is None else found[0], "rows": [] if found is None else found[1]})

    def _tallies(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        fit = self.canonical
        tallies = [asdict(tally) for tally in fit.leader.tallies]
        best = None if fit.best is None else {"loss": fit.best[0], "epoch": fit.best[1]}
        found = {"update": fit.update, "tallies": tallies, "validation": fit.validation_ns, "best": best}
        return Reply(body={**found, "resident": self.resident()})

    def _save(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        """Write the state of the fit between two updates into an arena; the answer has its tallies."""
        out = Arena.attach(descriptors[0], body["arena"])
        self.canonical.save(out)
        out.close()
        return self._tallies(body, payload, descriptors)

    def _restore(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        """Go on from a state that was saved."""
        saved, best = Arena.attach(descriptors[0], body["arena"]), body["best"]
        self.canonical.restore(saved, body["update"], None if best is None else (best["loss"], best["epoch"]))
        saved.close()
        return Reply(body={})

    def _parameters(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        """Write the committed parameters into the arena's ``out``."""
        out = Arena.attach(descriptors[0], body["arena"])
        np.copyto(out["out"], self.canonical.parameters)
        out.close()
        return Reply(body={})

    def _close(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        self.close_member()
        return Reply(body={"resident": self.resident()})

    def _scorer(self, body: Mapping[str, Any], payload: bytes) -> FitEngine:
        return self._engine(Sizes(**body["sizes"]), unpack_artifacts(body["index"], payload), 1)

    def _score(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        data = Arena.attach(descriptors[0], body["arena"])
        sums = self._scorer(body, payload).score(data["parameters"], data["x"], data["y"], body["rows"])
        data.close()
        return Reply(body={"sums": sums.tolist()})

    def _predict(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        data = Arena.attach(descriptors[0], body["arena"])
        np.copyto(data["out"], self._scorer(body, payload).predict(data["parameters"], data["x"]))
        data.close()
        return Reply(body={})

    def _simulate(self, body: Mapping[str, Any], payload: bytes, descriptors: Sequence[int]) -> Reply:
        hits, nanoseconds = self.simulate(body["start"], body["stop"], body["seed"])
        return Reply(body={"hits": hits, "compute": nanoseconds})
