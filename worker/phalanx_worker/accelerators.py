"""Which accelerators JAX could use here, and why one was not found; this process never imports JAX.

Plugins are listed by their metadata alone. A backend that has one is then proved by a disposable process, which must
print the known answer of a tiny program from every device before its deadline.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from phalanx_proto.execution import Backend

PROBE_DEADLINE = timedelta(seconds=60)
"""A first start of CUDA reads gigabytes of libraries from a cold disk."""

# The sum of squares of 0..255 is an integer below 2^24, so Float32 holds it in every order of summation.
_KNOWN_ANSWER = 255 * 256 * 511 // 6
_PROGRAM = """
import json
found, error = [], ""
try:
    import jax
    import jax.numpy as jnp
    square_sum = jax.jit(lambda x: jnp.sum(x * x))
    for device in jax.devices():
        answer = square_sum(jax.device_put(jnp.arange(256, dtype=jnp.float32), device))
        found.append({"kind": device.device_kind, "answer": float(answer)})
except Exception as caught:
    error = f"{type(caught).__name__}: {str(caught) or 'no message'}"
print()
print(json.dumps({"phalanx_probe": found, "error": error}), flush=True)
"""
# Plugins for Apple's GPU register under these names; jax-metal registers as METAL and no longer works.
_MPS_PLATFORMS = ("mps", "metal", "mtl")


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A JAX plugin as its metadata names it."""

    name: str
    """Of the entry point, or of the distribution."""
    target: str
    """The module that the entry point names; empty for a distribution."""


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One backend besides the CPU: its devices, or the reason why there are none."""

    backend: Backend
    platform: str | None
    """What ``JAX_PLATFORMS`` must say to use it; None where none was found."""
    devices: tuple[str, ...]
    """The kind of each device; its ordinal is its place."""
    reason: str
    """Why it was not found; empty where it was."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a disposable process found out about one value of ``JAX_PLATFORMS``."""

    devices: tuple[str, ...] = ()
    reason: str = ""


Prober = Callable[[str], Probe]


def list_plugins(path: Sequence[str] | None = None) -> tuple[Plugin, ...]:
    """The plugins installed, by entry point (group ``jax_plugins``) and by CUDA distribution; nothing is imported."""
    folders = [Path(folder) for folder in (sys.path if path is None else path)]
    entries = entry_points(group="jax_plugins") if path is None else ()
    found = {Plugin(name=entry.name, target=entry.value) for entry in entries}
    for folder in folders:
        for info in folder.glob("jax_cuda*_plugin-*.dist-info"):
            found.add(Plugin(name=info.name.partition("-")[0], target=""))
        # A module in this namespace package is a plugin as well, without metadata.
        for module in folder.glob("jax_plugins/[!_]*"):
            found.add(Plugin(name=module.stem, target=f"jax_plugins.{module.stem}"))
    return tuple(sorted(found, key=lambda plugin: (plugin.name, plugin.target)))


def find_accelerators(
    plugins: Sequence[Plugin], *, system: str, machine: str, driver: bool, probe: Prober | None
) -> tuple[Accelerator, ...]:
    """Every backend besides the CPU, with its devices or a reason. ``driver``: an NVIDIA driver is loaded.

    ``probe`` starts the process that proves a backend; None leaves it unproved, and so not found.
    """
    return (_find_cuda(plugins, driver, probe), _find_mps(plugins, system, machine, probe))


def nvidia_driver(root: Path) -> bool:
    """Whether Linux has loaded NVIDIA's driver; ``root`` stands for ``/``."""
    return (root / "proc/driver/nvidia/version").exists() or (root / "dev/nvidiactl").exists()


def probe_platform(
    platform: str,
    environment: Mapping[str, str],
    *,
    deadline: timedelta = PROBE_DEADLINE,
    python: str = sys.executable,
) -> Probe:
    """Run the known-answer program under ``JAX_PLATFORMS=platform`` in a process of its own, ended at the deadline."""
    try:
        child = subprocess.Popen(
            [python, "-P", "-c", _PROGRAM],
            env=_probe_environment(platform, environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Probe(reason=f"the probe could not be started: {error.strerror}")
    try:
        output, errors = child.communicate(timeout=deadline.total_seconds())
    except subprocess.TimeoutExpired:
        return Probe(reason=f"the probe did not answer within {deadline.total_seconds():g} seconds")
    finally:
        _end(child)
    return _read_probe(output.decode(errors="replace"), errors.decode(errors="replace"), child.returncode)


def _find_cuda(plugins: Sequence[Plugin], driver: bool, probe: Prober | None) -> Accelerator:
    mine = [plugin for plugin in plugins if "cuda" in f"{plugin.name} {plugin.target}".lower()]
    if mine:
        return _prove("cuda", ("cuda",), mine, probe)
    if driver:
        return _absent("cuda", "an NVIDIA driver is loaded, but no CUDA plugin of JAX is installed: install jax[cuda12]")
    return _absent("cuda", "no CUDA plugin of JAX is installed and no NVIDIA driver is loaded")


def _find_mps(plugins: Sequence[Plugin], system: str, machine: str, probe: Prober | None) -> Accelerator:
    if system != "Darwin" or machine != "arm64":
        return _absent("mps", "Apple Metal needs a Mac with Apple silicon")
    mine = [plugin for plugin in plugins if "cuda" not in f"{plugin.name} {plugin.target}".lower()]
    usable = [plugin for plugin in mine if "metal_plugin" not in f"{plugin.name} {plugin.target}"]
    if not usable:
        dead = "jax-metal is installed, which works with no current JAX; " if mine else ""
        return _absent("mps", f"{dead}no Metal plugin of JAX is installed: install jax-mps")
    words = {word for plugin in usable for word in re.split(r"[^a-z0-9]+", f"{plugin.name} {plugin.target}".lower())}
    return _prove("mps", tuple(name for name in _MPS_PLATFORMS if name in words) or ("mps",), usable, probe)


def _prove(backend: Backend, platforms: Sequence[str], plugins: Sequence[Plugin], probe: Prober | None) -> Accelerator:
    names = ", ".join(sorted({plugin.name for plugin in plugins}))
    if probe is None:
        return _absent(backend, f"not probed; plugins: {names}")
    reasons = []
    for platform in platforms:
        result = probe(platform)
        if result.devices:
            return Accelerator(backend=backend, platform=platform, devices=result.devices, reason="")
        reasons.append(f"{platform}: {result.reason}")
    return _absent(backend, f"plugins {names} are installed, but {'; '.join(reasons)}")


def _absent(backend: Backend, reason: str) -> Accelerator:
    return Accelerator(backend=backend, platform=None, devices=(), reason=reason)


def _probe_environment(platform: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without its JAX and XLA settings: an unknown XLA flag would end the process."""
    kept = {name: value for name, value in environment.items() if not name.startswith(("JAX_", "XLA_"))}
    return {**kept, "JAX_PLATFORMS": platform, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the probe's whole session, then collect it; a plugin may have started processes that hold the pipes."""
    if child.returncode is None:
        with suppress(PermissionError, ProcessLookupError):  # macOS refuses where only a zombie is left
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def _read_probe(output: str, errors: str, status: int) -> Probe:
    document = next((answer for line in reversed(output.splitlines()) if (answer := _answer(line)) is not None), None)
    if document is None:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        end = f"signal {-status}" if status < 0 else f"status {status}"
        return Probe(reason=f"the probe ended with {end}: {_without_paths(lines[-1] if lines else 'no message')}")
    if document["error"]:
        return Probe(reason=f"JAX could not use it ({_without_paths(' '.join(document['error'].split()))})")
    found = document["phalanx_probe"]
    wrong = [f"device {n} ({d['kind']})" for n, d in enumerate(found) if d["answer"] != _KNOWN_ANSWER]
    if wrong:
        return Probe(reason=f"a known answer came out wrong on {', '.join(wrong)}")
    return Probe(devices=tuple(str(d["kind"]) for d in found), reason="" if found else "JAX found no device")


def _answer(line: str) -> dict[str, Any] | None:
    """The probe's own line; None for whatever else a plugin prints."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) and {"phalanx_probe", "error"} <= document.keys() else None


def _without_paths(text: str) -> str:
    """The text with each absolute path cut to its last name: folders of a machine are private."""
    return re.sub(r"(?<![\w.])/(?:[^\s/:'\"()]+/)+", "", text)[:300]
