"""What a person gets by ``import phalanx`` alone: no JAX, no gRPC, no coordinator."""

import json
import subprocess
import sys

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
