"""Where it is computed, as frozen values. An execution never changes what is computed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from phalanx_proto.experiment import DType

Backend = Literal["cpu", "cuda", "mps"]


@dataclass(frozen=True, kw_only=True)
class Local:
    """Engines on this machine's CPU. ``workers=0`` is a conservative automatic choice."""

    workers: int = 0
    chunk: int | None = None
    """Samples of one simulation chunk; None chooses."""
    dtype: DType = "float64"


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator, or one CPU engine, of this machine."""

    backend: Backend
    dtype: DType = "float64"
    ordinal: int = 0
    chunk: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """An enrolled group, described by an owner-only TOML file."""

    file: Path
    chunk: int | None = None


Execution = Local | Device | Cluster
