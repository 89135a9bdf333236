"""What the control groups of Linux allow this process; version 1, version 2 and both mounted together.

Every group from the process's own up to the root of the mount may set a limit, and the smallest holds. All functions
are pure over ``root``: the folder that stands for ``/``. What cannot be read sets no limit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Version 1 writes "no limit" as the largest multiple of the page size below 2^63.
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, kw_only=True)
class _Mount:
    version: int
    controllers: frozenset[str]
    origin: PurePosixPath
    """The group that the mount point shows: a container sees its own group there, not the host's root."""
    point: PurePosixPath


def cpu_quota(root: Path) -> float | None:
    """CPUs that the smallest quota above this process allows, as 1.5; None without a quota."""
    quotas = [q for folder in _groups(root, 2, "") if (q := _quota_v2(folder)) is not None]
    quotas += [q for folder in _groups(root, 1, "cpu") if (q := _quota_v1(folder)) is not None]
    return min(quotas, default=None)


def memory_limit(root: Path) -> int | None:
    """Bytes that the smallest memory limit above this process allows; None without a limit."""
    texts = [_text(folder / "memory.max") for folder in _groups(root, 2, "")]
    texts += [_text(folder / "memory.limit_in_bytes") for folder in _groups(root, 1, "memory")]
    limits = [int(text) for text in texts if text is not None and text.isdecimal()]
    return min((limit for limit in limits if 0 < limit < _UNLIMITED_BYTES), default=None)


def _quota_v2(folder: Path) -> float | None:
    """``cpu.max`` holds "quota period" in microseconds, or "max period"."""
    match (_text(folder / "cpu.max") or "").split():
        case [quota, period]:
            return _ratio(quota, period)
        case _:
            return None


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _ratio(quota: str | None, period: str | None) -> float | None:
    """Version 1 writes -1 for no quota, version 2 writes max: neither is a decimal number."""
    if quota is None or period is None or not (quota.isdecimal() and period.isdecimal()):
        return None
    return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None


def _groups(root: Path, version: int, controller: str) -> Iterator[Path]:
    """The folders of this process's groups, innermost first, up to the mount point."""
    path = _own_group(root, controller)
    if path is None:
        return
    for mount in _mounts(root):
        if mount.version != version or (controller and controller not in mount.controllers):
            continue
        point = root / mount.point.relative_to("/")
        inside = path.relative_to(mount.origin) if path.is_relative_to(mount.origin) else PurePosixPath()
        if ".." in inside.parts:
            inside = PurePosixPath()
        for parts in range(len(inside.parts), -1, -1):
            yield point.joinpath(*inside.parts[:parts])


def _own_group(root: Path, controller: str) -> PurePosixPath | None:
    """The path in ``/proc/self/cgroup``; an empty controller asks for version 2, whose line is ``0::path``."""
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/") and controller in controllers.split(","):
            return PurePosixPath(path)
    return None


def _mounts(root: Path) -> list[_Mount]:
    """The control group mounts in ``/proc/self/mountinfo``; proc(5) gives the fields."""
    found = []
    for line in (_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        origin, point = (PurePosixPath(field.replace("\\040", " ")) for field in fields[3:5])
        if origin.is_absolute() and point.is_absolute():
            version = 2 if kind[0] == "cgroup2" else 1
            controllers = frozenset(kind[2].split(","))
            found.append(_Mount(version=version, controllers=controllers, origin=origin, point=point))
    return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
