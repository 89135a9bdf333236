"""What a person gets by ``import phalanx`` alone: no JAX, no gRPC, no coordinator."""

import json
import os
import subprocess
import sys
from pathlib import Path

LOOK = "import json, sys; print(json.dumps(sorted(sys.modules)))"
ROLES = ("phalanx_coordinator", "phalanx_worker")
HEAVY = ("jax", "jaxlib", "grpc", "google.protobuf", "optax", "sklearn", "psutil", "typer")


def modules_after(code: str) -> set[str]:
    answer = subprocess.run([sys.executable, "-c", f"{code}\n{LOOK}"], capture_output=True, check=True, text=True)
    return set(json.loads(answer.stdout))


def test_importing_phalanx_loads_neither_jax_nor_grpc_nor_another_role() -> None:
    loaded = modules_after("import phalanx")
    assert "phalanx" in loaded
    assert [name for name in (*ROLES, *HEAVY) if name in loaded] == []


def test_neither_does_all_that_needs_no_engine() -> None:
    loaded = modules_after(
        "import phalanx\n"
        "parts = phalanx.datasets.iris().partition(seed=1)\n"
        "phalanx.classifier(phalanx.mlp(4, [8], 3, seed=42), standardize=True)\n"
        "phalanx.training(epochs=1, batch=32, rate=0.01, validation=parts.validation)\n"
        "phalanx.local(workers=2); phalanx.device('cpu', 'float64'); phalanx.cluster('group.toml')\n"
    )
    assert [name for name in (*ROLES, *HEAVY) if name in loaded] == []


def test_a_client_of_a_service_needs_grpc_and_nothing_that_computes() -> None:
    loaded = modules_after("import phalanx.calls, phalanx.tunnel")
    assert {"grpc", "google.protobuf"} <= loaded
    assert [name for name in (*ROLES, *HEAVY) if name in loaded - {"grpc", "google.protobuf"}] == []


def test_the_coordinator_of_this_process_never_loads_jax() -> None:
    loaded = modules_after("import phalanx.embedded")
    assert "phalanx_coordinator.session" in loaded
    assert [name for name in ("jax", "jaxlib") if name in loaded] == []


THIN = """
import asyncio, sys
sys.modules["jax"] = None  # not installed, as far as anybody can find out
import phalanx
from phalanx.cli import app
from phalanx_coordinator.service import serve

for run in (
    lambda: app(["fit", "--data", "iris"]),
    lambda: app(["fit", "--data", "iris", "--background", "--output", "night"]),
    lambda: app(["simulate", "--samples", "1000"]),
    lambda: app(["regression", "--cluster", "group.toml"]),
    lambda: app(["doctor", "group.toml"]),
    lambda: app(["enroll", "atlas", "--name", "atlas"]),
    lambda: serve.main(["--socket", "run/c.sock", "--directory", "kept"]),
):
    try:
        run()
    except SystemExit as ended:
        print(ended.code)
try:
    phalanx.monte_carlo(samples=1000)
except phalanx.PhalanxError as error:
    print(type(error).__name__)
"""


def test_without_jax_each_request_to_compute_is_refused_before_anything_starts(tmp_path: Path) -> None:
    group = tmp_path / "group.toml"
    group.touch(mode=0o600)
    far = 'name = "far"\ntransport = "ssh"\nhost = "atlas"\npython = "/x/python"\n'
    group.write_text(f'version = 2\nprecision = "float64"\n[[worker]]\n{far}')
    ran = subprocess.run(
        [sys.executable, "-c", THIN], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
    )  # fmt: skip
    assert ran.stdout.split() == ["3"] * 7 + ["Unavailable"], ran.stderr
    refused = [line for line in ran.stderr.splitlines() if line.startswith("error: this installation has no JAX")]
    assert len(refused) == len(ran.stderr.splitlines()) == 7, ran.stderr
    assert list(tmp_path.iterdir()) == [group]
