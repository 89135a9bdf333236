"""Where a run takes place: constructors of the immutable executions, with their checks.

Only what can be known without looking at a machine is checked here; what is absent is refused when the run opens.
"""

import os
from pathlib import Path
from typing import get_args

from phalanx.checks import Faults
from phalanx_proto.execution import Backend, Cluster, Device, Local
from phalanx_proto.experiment import DTYPES, DType

BACKENDS: tuple[str, ...] = get_args(Backend)
MAX_LOCAL_WORKERS = 256
MAX_CHUNK = 10**12
"""No simulation has more samples."""


def local(workers: int = 0, *, chunk: int | None = None, dtype: DType = "float64") -> Local:
    """Engines on this machine's CPU.

    ``workers=0`` is a conservative automatic choice; a positive number is what you get, or an error. ``chunk`` is the
    number of samples of one simulation chunk (None chooses). Raises ``InvalidExperiment``.
    """
    faults = Faults()
    workers = faults.whole("workers", workers, 0, MAX_LOCAL_WORKERS)
    chunk = _chunk(faults, chunk)
    faults.choice("dtype", dtype, DTYPES)
    faults.settle()
    return Local(workers=workers, chunk=chunk, dtype=dtype)


def device(backend: Backend, dtype: DType, *, ordinal: int = 0, chunk: int | None = None) -> Device:
    """One device of this machine: backend ``cpu``, ``cuda`` or ``mps`` and its ``ordinal``.

    Nothing falls back: what is not there is an error, and so is Float64 on Metal. Raises ``InvalidExperiment``.
    """
    faults = Faults()
    faults.choice("backend", backend, BACKENDS)
    faults.choice("dtype", dtype, DTYPES)
    if (backend, dtype) == ("mps", "float64"):
        faults.add('Metal has no Float64: ask for device("mps", "float32"), or compute in Float64 on "cpu" or "cuda"')
    ordinal = faults.whole("ordinal", ordinal, 0)
    chunk = _chunk(faults, chunk)
    faults.settle()
    return Device(backend=backend, dtype=dtype, ordinal=ordinal, chunk=chunk)


def cluster(file: str | os.PathLike[str], *, chunk: int | None = None) -> Cluster:
    """The group that a TOML file describes; the file is read, and must be its owner's alone, when a run opens.

    ``~`` is expanded. Raises ``InvalidExperiment``.
    """
    faults = Faults()
    if not isinstance(file, str | os.PathLike) or not os.fspath(file):
        faults.add(f"file must be the path of a cluster file, not {file!r:.60}")
    chunk = _chunk(faults, chunk)
    faults.settle()
    return Cluster(file=Path(file).expanduser(), chunk=chunk)


def _chunk(faults: Faults, chunk: int | None) -> int | None:
    return None if chunk is None else faults.whole("chunk", chunk, 1, MAX_CHUNK)
