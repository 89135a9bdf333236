"""The CPU's model and the instruction sets that can change a bit of a result; part of the numeric class."""

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Sysctl = Callable[[str], str | None]
"""Text of one macOS sysctl name, or None."""

# The levels of the x86-64 psABI, each on top of the one before, in the kernel's names (abm is LZCNT, pni is SSE3).
_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("x86-64-v2", frozenset(["cx16", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])),
    ("x86-64-v3", frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"])),
    ("x86-64-v4", frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])),
)
# Instruction sets that a compiler of numeric code may use, hence those by which two machines may differ in a bit.
_NUMERIC_X86 = re.compile(r"sse\w*|ssse3|pni|avx\w*|amx\w*|fma4?|f16c|xop|bmi[12]|abm|popcnt|movbe|gfni")
_NUMERIC_ARM = re.compile(r"fp|fphp|asimd\w*|sve\w*|sme\w*|i8mm|bf16|fcma|jscvt|feat_\w+|fhm")
# macOS writes the same sets in other words.
_DARWIN_X86 = {"sse3": "pni", "avx1_0": "avx", "lzcnt": "abm"}


@dataclass(frozen=True, kw_only=True)
class Processor:
    """One machine's CPU; None is what could not be read."""

    model: str | None
    level: str | None
    """Short and canonical: x86-64, x86-64-v2, x86-64-v3, x86-64-v4, arm64, or the machine's own word."""
    features: tuple[str, ...]
    """Instruction sets that may change a bit, sorted; empty where unknown."""

    @property
    def text(self) -> str:
        """Level and features in one line; equal text means the same instruction sets."""
        return f"{self.level or 'N/A'}: {' '.join(self.features) or 'N/A'}"


def read_processor(root: Path, system: str, machine: str, sysctl: Sysctl) -> Processor:
    """The CPU of this machine. ``root`` stands for ``/``; ``system`` and ``machine`` as in ``platform``."""
    if system == "Darwin":
        return _from_sysctl(machine, sysctl)
    return _from_cpuinfo(_first_cpu(root / "proc/cpuinfo"), machine)


def read_sysctl(name: str) -> str | None:
    """What macOS answers for ``name``; None where it does not, or not within two seconds."""
    try:
        done = subprocess.run(["/usr/sbin/sysctl", name], capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _first_cpu(path: Path) -> dict[str, str]:
    """The first CPU's block of /proc/cpuinfo; reading one block stays fast where there are hundreds."""
    found: dict[str, str] = {}
    try:
        with path.open(errors="replace") as lines:
            for line in lines:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                found[name.strip()] = value.strip()
    except OSError:
        return {}
    return found


def _from_cpuinfo(cpu: dict[str, str], machine: str) -> Processor:
    flags = (cpu.get("flags") or cpu.get("Features") or "").lower().split()
    model = cpu.get("model name")
    if model is None and "CPU implementer" in cpu:
        model = f"ARM implementer {cpu['CPU implementer']} part {cpu.get('CPU part', 'unknown')}"
    return _processor(model, machine, flags)


def _from_sysctl(machine: str, sysctl: Sysctl) -> Processor:
    brand = sysctl("machdep.cpu.brand_string") or ""
    model = brand.partition(":")[2].strip() or None
    if _is_arm(machine):
        lines = re.findall(r"hw\.optional\.(?:arm\.)?(\w+):\s*1\b", sysctl("hw.optional") or "")
        return _processor(model, machine, [name.lower() for name in lines if name.startswith("FEAT_")])
    names = ("machdep.cpu.features", "machdep.cpu.leaf7_features", "machdep.cpu.extfeatures")
    words = " ".join((sysctl(name) or "").partition(":")[2] for name in names)
    plain = [word.replace(".", "_") for word in words.lower().split()]
    return _processor(model, machine, [_DARWIN_X86.get(word, word) for word in plain])


def _processor(model: str | None, machine: str, flags: list[str]) -> Processor:
    numeric = _NUMERIC_ARM if _is_arm(machine) else _NUMERIC_X86
    features = tuple(sorted({flag for flag in flags if numeric.fullmatch(flag)}))
    return Processor(model=model, level=_level(machine, frozenset(flags)), features=features)


def _level(machine: str, flags: frozenset[str]) -> str | None:
    if _is_arm(machine):
        return "arm64"
    if machine.lower() not in ("x86_64", "amd64"):
        return machine or None
    if not flags:
        return None
    level = "x86-64"
    for name, needed in _LEVELS:
        if not needed <= flags:
            break
        level = name
    return level


def _is_arm(machine: str) -> bool:
    return machine.lower() in ("arm64", "aarch64")
