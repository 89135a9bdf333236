"""What the figures were measured on, without names or paths."""

import os
import platform
from functools import cache
from pathlib import Path

import psutil

GIBIBYTE = 1 << 30


@cache
def _cpuinfo() -> dict[str, str]:
    """First processor of /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def is_amd() -> bool:
    return _cpuinfo().get("vendor_id") == "AuthenticAMD"


def has_avx512() -> bool:
    return "avx512dq" in _cpuinfo().get("flags", "").split()


def describe() -> str:
    """One line: processor, cores, memory, system."""
    model = _cpuinfo().get("model name") or platform.processor() or platform.machine()
    cores = psutil.cpu_count() or 0
    memory = round(psutil.virtual_memory().total / GIBIBYTE)
    width = ", AVX-512" if has_avx512() else ""
    kind = "virtual, " if "hypervisor" in _cpuinfo().get("flags", "").split() else ""
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return f"{model} ({kind}{cores} logical processors{width}), {memory} GiB, {system}"


def load() -> float:
    """Processes that wanted to run in the last minute; well below 1 where the machine is left alone."""
    return os.getloadavg()[0]
