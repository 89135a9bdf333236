"""Stub until the real one arrives."""
import os
def engine_environment(backend: str = "cpu") -> dict[str, str]:
    """Stub."""
    return {**os.environ, "NPROC": "1", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": backend, "JAX_ENABLE_X64": "1", "XLA_FLAGS": "--xla_cpu_experimental_ynn_fusion_type="}
