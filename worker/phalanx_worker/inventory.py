"""What this machine has to offer, and why something is not there. Imports no JAX; N/A is what was not measured."""

import dataclasses
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from phalanx_proto.fingerprint import source_fingerprint
from phalanx_worker import accelerators, allocation, cgroups, processor
from phalanx_worker.accelerators import Accelerator, Plugin
from phalanx_worker.allocation import Allocation
from phalanx_worker.environment import engine_environment
from phalanx_worker.processor import Processor

PACKAGES = ("phalanx", "numpy", "grpcio", "jax", "jaxlib")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """The system and the software; a version is None where that package is not installed."""

    os: str
    release: str
    machine: str
    python: str
    versions: Mapping[str, str | None]

    @property
    def text(self) -> str:
        """One line, as the handshake carries it: ``Linux x86_64``."""
        return f"{self.os} {self.machine}"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes; None is what is not known or not limited."""

    total: int | None
    available: int | None
    cgroup_limit: int | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Inventory:
    """One machine as Phalanx sees it. It holds no host name, user name or path."""

    allocation: Allocation
    physical_cpus: int | None
    """Cores; each may show as two logical CPUs."""
    processor: Processor
    memory: Memory
    platform: Platform
    plugins: tuple[Plugin, ...]
    accelerators: tuple[Accelerator, ...]
    notes: tuple[str, ...]

    @property
    def slots(self) -> int:
        """CPU slots that may be used here, at least 1."""
        return self.allocation.slots

    def accelerator(self, backend: str) -> Accelerator | None:
        """The findings on one backend besides the CPU; None for a backend that nobody looks for."""
        return next((found for found in self.accelerators if found.backend == backend), None)

    def to_dict(self) -> dict[str, Any]:
        """JSON values. Missing measurements are null, never 0."""
        limits = dataclasses.asdict(self.allocation)
        return {
            "slots": limits["slots"],
            "slots_reason": limits["reason"],
            "logical_cpus": limits["logical_cpus"],
            "physical_cpus": self.physical_cpus,
            "affinity": limits["affinity"],
            "cgroup_quota": limits["cgroup_quota"],
            "scheduler_limits": dict(limits["scheduler_limits"]),
            "memory": dataclasses.asdict(self.memory),
            "processor": {**dataclasses.asdict(self.processor), "features": list(self.processor.features)},
            "platform": dataclasses.asdict(self.platform),
            "plugins": [dataclasses.asdict(plugin) for plugin in self.plugins],
            "accelerators": [{**dataclasses.asdict(a), "devices": list(a.devices)} for a in self.accelerators],
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """A short table for a person."""
        limits, versions = self.allocation, self.platform.versions
        scheduler = ", ".join(f"{name}={value}" for name, value in limits.scheduler_limits.items())
        rows = [
            ("slots", f"{limits.slots} ({limits.reason})"),
            ("CPU", f"{_shown(self.processor.model)} [{_shown(self.processor.level)}]"),
            ("logical CPUs", f"{_shown(limits.logical_cpus)} on {_shown(self.physical_cpus)} cores"),
            ("affinity", _shown(limits.affinity)),
            ("cgroup quota", "none" if limits.cgroup_quota is None else f"{limits.cgroup_quota:g} CPUs"),
            ("scheduler", scheduler or "none"),
            ("memory", f"{_bytes(self.memory.total)} total, {_bytes(self.memory.available)} available"),
            ("memory limit", "none" if self.memory.cgroup_limit is None else _bytes(self.memory.cgroup_limit)),
            ("platform", f"{self.platform.text}, Python {self.platform.python}"),
            ("versions", ", ".join(f"{name} {_shown(versions[name])}" for name in versions)),
        ]
        for found in self.accelerators:
            devices = ", ".join(f"{ordinal}: {kind}" for ordinal, kind in enumerate(found.devices))
            rows.append((found.backend, devices or f"not found: {found.reason}"))
        rows += [("note", note) for note in self.notes]
        return "\n".join(f"{label:<13} {text}" for label, text in rows)

    def __repr__(self) -> str:
        found = [a.backend for a in self.accelerators if a.devices]
        return (
            f"Inventory(slots={self.slots}, processor={_shown(self.processor.model)!r}, "
            f"level={_shown(self.processor.level)!r}, memory={_bytes(self.memory.total)!r}, accelerators={found})"
        )


def inventory(
    probe_accelerators: bool = True, *, environment: Mapping[str, str] | None = None, root: Path = Path("/")
) -> Inventory:
    """Look at this machine. ``environment`` is this process's own by default; ``root`` stands for ``/``.

    Takes some ten milliseconds; with an accelerator's plugin installed and ``probe_accelerators``, the seconds that a
    process of its own needs to prove each backend, at most ``PROBE_DEADLINE``. Refuses nothing and raises nothing of
    its own: what cannot be found out is None, with a note.
    """
    seen = dict(os.environ if environment is None else environment)
    system, machine = platform.system(), platform.machine()
    limits = allocation.discover(
        logical_cpus=os.cpu_count(),
        affinity=allocation.affinity(),
        cgroup_quota=cgroups.cpu_quota(root),
        environment=seen,
    )
    cpu = processor.read_processor(root, system, machine, processor.read_sysctl)
    plugins = accelerators.list_plugins()
    found = accelerators.find_accelerators(
        plugins,
        system=system,
        machine=machine,
        driver=accelerators.nvidia_driver(root),
        probe=(lambda name: accelerators.probe_platform(name, seen)) if probe_accelerators else None,
    )
    memory = read_memory(root)
    return Inventory(
        allocation=limits,
        physical_cpus=psutil.cpu_count(logical=False),
        processor=cpu,
        memory=memory,
        platform=read_platform(),
        plugins=plugins,
        accelerators=found,
        notes=(*limits.notes, *_notes(cpu, memory)),
    )


def numeric_facts(machine: Inventory, backend: str) -> dict[str, str | None]:
    """All that can change a bit of what an engine on ``backend`` computes here, but for the program."""
    environment = engine_environment(backend)
    return {
        "platform": machine.platform.text,
        "features": machine.processor.text,
        "jaxlib": machine.platform.versions.get("jaxlib"),
        "backend": backend,
        "flags": environment.get("XLA_FLAGS", ""),
        "threads": environment.get("NPROC", ""),
        "source": source_fingerprint(),
    }


def read_memory(root: Path) -> Memory:
    """The memory of this machine and the limit of the control groups under ``root``."""
    machine = psutil.virtual_memory()
    return Memory(total=machine.total, available=machine.available, cgroup_limit=cgroups.memory_limit(root))


def read_platform() -> Platform:
    """System, Python and the versions of what computes here, from metadata alone."""
    return Platform(
        os=platform.system(),
        release=platform.release(),
        machine=platform.machine(),
        python=platform.python_version(),
        versions={name: _version(name) for name in PACKAGES},
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _notes(cpu: Processor, memory: Memory) -> list[str]:
    notes = []
    if not cpu.features:
        notes.append("the CPU's instruction sets could not be read, so its numeric class is unknown")
    if memory.cgroup_limit is not None and memory.total is not None and memory.cgroup_limit < memory.total:
        notes.append("a control group limits memory below the machine's; what is available of it was not measured")
    return notes


def _shown(value: object) -> str:
    return "N/A" if value is None else str(value)


def _bytes(number: int | None) -> str:
    return "N/A" if number is None else f"{number / 2**30:.1f} GiB"
