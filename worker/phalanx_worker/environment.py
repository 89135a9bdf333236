"""The environment an engine starts in: everything outside the program that could change a bit is set here, once.

Jax-free: it is read before JAX is loaded, by whoever starts an engine.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from phalanx_proto.installed import library_knows

YNN_FLAG = "xla_cpu_experimental_ynn_fusion_type"
"""Emptied, it keeps XLA from the YNNPACK reductions that give wrong sums in some jaxlib versions."""
NUMERIC_PREFIXES = ("JAX_", "XLA_", "TF_", "NVIDIA_TF32", "MKL_", "OPENBLAS_", "CUDA_MODULE")
"""A user's own settings of these never reach an engine."""
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
PLATFORMS: Mapping[str, str] = {"cpu": "cpu", "cuda": "cuda,cpu", "mps": "mps,cpu"}


RETAINED: Mapping[str, str] = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_ARENA_MAX": "1",
}
"""Keeps glibc from giving the memory of one update back to the system and asking for it again in the next: a third of the
time of a gradient of 25 million parameters was page faults. Other systems ignore it."""


def knows_flag(flag: str) -> bool:
    """Whether the installed jaxlib knows an XLA flag; an unknown one would end the process."""
    return library_knows("jaxlib", "*.so", flag)


def engine_environment(backend: str = "cpu", inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of an engine process on ``backend``, from ``inherited`` (this process's by default)."""
    source = os.environ if inherited is None else inherited
    kept = {
        name: value for name, value in source.items() if not name.startswith(NUMERIC_PREFIXES) and name.lower() not in PROXIES
    }
    flags = f"--{YNN_FLAG}=" if knows_flag(YNN_FLAG) else ""
    return {
        **kept,
        **RETAINED,
        "PYTHONSAFEPATH": "1",  # what lies in the directory we were started in is not for us
        "NPROC": "1",
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": PLATFORMS[backend],
        "JAX_ENABLE_X64": "1",
        "XLA_FLAGS": flags,
    }


MARK = "PHALANX_ENVIRONMENT"
"""Set in the environment that ``enter_for`` made, to the backend it was made for."""


def enter_for(arguments: Sequence[str]) -> None:
    """Start this process anew, as a worker with these arguments, in its engine's environment, unless it is in it.

    The C library and XLA read their settings once, at the start; a daemon may have been started by anything. Arguments that
    cannot be understood are left to those who tell what is wrong with them.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--backend", choices=tuple(PLATFORMS), default="cpu")
    try:
        backend = parser.parse_known_args(arguments)[0].backend
    except argparse.ArgumentError:
        return
    if os.environ.get(MARK) != backend:
        command = [sys.executable, "-m", "phalanx_worker", *arguments]
        os.execve(command[0], command, {**engine_environment(backend), MARK: backend})
