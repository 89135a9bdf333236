"""The memory an engine may have: all that the machine or the control group has, so that it fails and not its neighbours."""

import contextlib
import resource
from pathlib import Path

import psutil

from phalanx_worker.cgroups import memory_limit


def memory_bound(root: Path = Path("/")) -> int:
    """Bytes of this machine, or of this process's control group where that is less."""
    total = int(psutil.virtual_memory().total)
    allotted = memory_limit(root)
    return total if allotted is None else min(total, allotted)


def confine(backend: str, bound: int) -> None:
    """Bound the data that this process may map, and write no core; a program that wants more gets an error of its own.

    Accelerator runtimes reserve address space that they never use, so only CPU engines are bounded.
    """
    limits = [(resource.RLIMIT_CORE, 0)]
    if backend == "cpu":
        limits.append((resource.RLIMIT_DATA, bound))
    for kind, value in limits:
        _, hard = resource.getrlimit(kind)
        with contextlib.suppress(ValueError, OSError):  # macOS knows the limit and does not let it be set
            resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
