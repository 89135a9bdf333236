"""What this machine answers to a handshake: versions, fingerprint, slots, backends, numeric class. Jax-free."""

import json
import os

from phalanx_proto import fingerprint, tensors
from phalanx_proto.handshake import PASSED, PROTOCOL, BackendFound, Handshake
from phalanx_proto.version import VERSION
from phalanx_worker.inventory import Inventory, numeric_facts


def numeric_class(inventory: Inventory, backend: str) -> str:
    """Digest of all that can change a bit on this machine, but for the program."""
    return tensors.digest_bytes(json.dumps(numeric_facts(inventory, backend), sort_keys=True).encode())


def backends(inventory: Inventory) -> tuple[BackendFound, ...]:
    """The CPU and every accelerator that was looked for."""
    cpu = BackendFound(name="cpu", devices=("cpu",), reason="")
    return (cpu, *(BackendFound(name=a.backend, devices=a.devices, reason=a.reason) for a in inventory.accelerators))


def handshake(inventory: Inventory, *, slots: int, backend: str, self_test: str = PASSED) -> Handshake:
    """The machine's account of itself for a run that asks for ``slots`` slots of ``backend``."""
    versions = inventory.platform.versions
    return Handshake(
        protocol=PROTOCOL,
        phalanx=VERSION,
        source=fingerprint.source_fingerprint(),
        platform=inventory.platform.text,
        python=inventory.platform.python,
        jax=versions.get("jax") or "",
        jaxlib=versions.get("jaxlib") or "",
        cpu_features=inventory.processor.text,
        slots_asked=slots,
        slots_found=inventory.slots,
        backends=backends(inventory),
        self_test=self_test,
        pid=os.getpid(),
        numeric_class=numeric_class(inventory, backend),
    )
