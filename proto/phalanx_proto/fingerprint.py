"""One SHA-256 over the source files that decide numbers: equal on two machines, or they do not work together."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

WORKER_SOURCES = (
    "engine.py",
    "lowering.py",
    "simulation.py",
    "gang.py",
    "fit.py",
    "member_fit.py",
    "mailbox.py",
    "selftest.py",
)


@cache
def source_fingerprint() -> str:
    """SHA-256, in hex, of this installation's numeric sources; read once a process."""
    return fingerprint_of({name: path.read_bytes() for name, path in numeric_sources().items()})


def fingerprint_of(sources: Mapping[str, bytes]) -> str:
    """SHA-256, in hex, of names and contents; the order of the names and the kind of line ends do not matter."""
    state = hashlib.sha256()
    for name in sorted(sources):
        content = sources[name].replace(b"\r\n", b"\n")
        state.update(f"{name}\n{len(content)}\n".encode())
        state.update(content)
    return state.hexdigest()


def numeric_sources() -> dict[str, Path]:
    """The files by "package/relative/name.py": phalanx_proto but for what is generated, and the worker's numerics."""
    found: dict[str, Path] = {}
    for folder in _folders("phalanx_proto"):
        paths = [path for path in folder.rglob("*.py") if not path.stem.endswith(("_pb2", "_pb2_grpc"))]
        found |= {f"phalanx_proto/{path.relative_to(folder).as_posix()}": path for path in paths}
    for folder in _folders("phalanx_worker"):
        found |= {f"phalanx_worker/{name}": folder / name for name in WORKER_SOURCES if (folder / name).is_file()}
    return found


def _folders(package: str) -> list[Path]:
    """Where a top-level package lies; finding it does not import it."""
    spec = find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
