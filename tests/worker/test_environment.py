import contextlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from phalanx_worker import environment
from phalanx_worker.environment import MARK, YNN_FLAG, engine_environment, enter_for, knows_flag

HOSTILE = {
    "JAX_PLATFORMS": "tpu", "JAX_ENABLE_X64": "0", "XLA_FLAGS": "--xla_cpu_enable_fast_math=true", "XLA_PYTHON_X": "1",
    "TF_ENABLE_ONEDNN_OPTS": "1", "NVIDIA_TF32_OVERRIDE": "1", "MKL_CBWR": "AVX", "OPENBLAS_NUM_THREADS": "8",
    "CUDA_MODULE_LOADING": "LAZY", "NPROC": "64", "OMP_NUM_THREADS": "8", "http_proxy": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9", "grpc_proxy": "http://127.0.0.1:9", "ALL_PROXY": "x",
}  # fmt: skip
KEPT = {"PATH": "/bin", "HOME": "/home/me", "LD_LIBRARY_PATH": "/opt", "CUDA_VISIBLE_DEVICES": "1", "NSLOTS": "2"}


def test_a_users_settings_never_reach_an_engine() -> None:
    found = engine_environment("cpu", {**KEPT, **HOSTILE})
    assert found == {**KEPT, **engine_environment("cpu", {})}
    assert found["NPROC"] == found["OMP_NUM_THREADS"] == found["JAX_ENABLE_X64"] == "1"


@pytest.mark.parametrize(("backend", "platforms"), [("cpu", "cpu"), ("cuda", "cuda,cpu"), ("mps", "mps,cpu")])
def test_the_platform_is_pinned(backend: str, platforms: str) -> None:
    assert engine_environment(backend, {})["JAX_PLATFORMS"] == platforms


def test_this_process_is_the_default_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_SEEN", "yes")
    monkeypatch.setenv("XLA_FLAGS", "--nonsense")
    found = engine_environment()
    assert found["PHALANX_SEEN"] == "yes" and "nonsense" not in found["XLA_FLAGS"]


def test_a_flag_is_known_by_looking_not_by_dying() -> None:
    assert knows_flag("xla_cpu_enable_fast_math")
    assert not knows_flag("xla_phalanx_no_such_flag")


@pytest.mark.parametrize("known", [True, False])
def test_the_sum_flag_is_set_where_it_is_known(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    monkeypatch.setattr(environment, "knows_flag", lambda flag: known and flag == YNN_FLAG)
    assert engine_environment("cpu", {})["XLA_FLAGS"] == (f"--{YNN_FLAG}=" if known else "")


def test_jax_starts_in_it_and_counts_in_doubles() -> None:
    program = (
        "import json, jax; x = jax.numpy.asarray([0.1]);"
        "print(json.dumps([str(x.dtype), jax.default_backend(), jax.device_count()]))"
    )
    inherited = {"PATH": "/usr/bin:/bin", **HOSTILE}
    done = subprocess.run(
        [sys.executable, "-c", program], env=engine_environment("cpu", inherited), capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == ["float64", "cpu", 1]


class Anew(Exception):
    """The process would be another one now."""


@pytest.mark.parametrize(
    ("arguments", "marked", "backend"),
    [
        ([], "", "cpu"),
        (["--slots", "2", "--backend", "cuda", "--oversubscribe"], "", "cuda"),
        (["--backend=mps"], "cpu", "mps"),
        (["--slots", "2"], "cpu", None),
        (["--backend", "abacus"], "", None),
        (["--backend"], "", None),
    ],
)
def test_a_worker_enters_the_environment_of_its_backend_once(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], marked: str, backend: str | None
) -> None:
    started: list[tuple[str, list[str], dict[str, str]]] = []

    def execve(*given: Any) -> None:
        started.append(given)
        raise Anew

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setenv(MARK, marked)
    with contextlib.suppress(Anew):
        enter_for(arguments)
    if backend is None:
        assert started == []
        return
    ((path, command, environment),) = started
    assert (path, command) == (sys.executable, [sys.executable, "-m", "phalanx_worker", *arguments])
    assert environment[MARK] == backend and environment["JAX_PLATFORMS"].split(",")[0] == backend
