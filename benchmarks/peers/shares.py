"""A share of a processor for each process that real machines would run on processors of their own.

On two cores the ends of a connection, ssh and sshd take the time of each other, and three machines that start are three times
the work of one. With a share for each, none has more than it would have anywhere, and none takes from another. Linux, as
root, with the cpu controller of cgroups, version 1 or 2; RuntimeError says what is missing.
"""

import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PERIOD = 10_000
"""Microseconds in which a share is given out: short beside what ssh has under way."""


class Shares:
    """Groups of processes, each with the same share; names are made up by whoever uses them."""

    def __init__(self, share: float, folder: Path) -> None:
        self._share, self._folder = share, folder
        self._root, self._version = _controller()
        self._groups: dict[str, Path] = {}

    def join(self, name: str, pid: int) -> None:
        """Put a process, and all that it starts from now on, into a group."""
        (self._group(name) / "cgroup.procs").write_text(str(pid))

    def command(self, name: str, program: str) -> Path:
        """A program that joins a group and becomes ``program``."""
        path = self._folder / name / Path(program).name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\necho $$ > {self._group(name)}/cgroup.procs\nexec {shlex.quote(program)} "$@"\n')
        path.chmod(0o755)
        return path

    def _group(self, name: str) -> Path:
        if name not in self._groups:
            group = self._root / f"phalanx-{os.getpid()}-{name}"
            try:
                group.mkdir()
                self._groups[name] = group
                self._limit(group)
            except OSError as error:
                raise RuntimeError(f"this system gives no shares of a processor: {error.strerror} ({group.name})") from None
        return self._groups[name]

    def _limit(self, group: Path) -> None:
        quota = int(PERIOD * self._share)
        if self._version == 2:
            (group / "cpu.max").write_text(f"{quota} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))

    def close(self) -> None:
        """Leave all groups, and remove them once everybody else has gone."""
        (self._root / "cgroup.procs").write_text(str(os.getpid()))
        until = time.monotonic() + 10
        while any(group.exists() for group in self._groups.values()):
            for group in self._groups.values():
                with suppress(OSError):
                    group.rmdir()
            if time.monotonic() > until:
                raise RuntimeError(f"processes are left in {', '.join(map(str, self._groups.values()))}")
            time.sleep(0.02)


@contextmanager
def shares(share: float) -> Iterator[Shares]:
    """Groups with a share each; this process and each ssh that it starts have one."""
    with ExitStack() as stack:
        found = Shares(share, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.callback(found.close)
        ssh, path = shutil.which("ssh"), os.environ["PATH"]
        if ssh is None:
            raise RuntimeError("ssh is not installed")
        os.environ["PATH"] = f"{found.command('ssh', ssh).parent}{os.pathsep}{path}"
        stack.callback(os.environ.__setitem__, "PATH", path)
        found.join("near", os.getpid())
        yield found


def _controller() -> tuple[Path, int]:
    """Where groups for processors are made, and the version of that."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            return _writable(Path(point)), 1
        if kind == "cgroup2" and "cpu" in (Path(point) / "cgroup.subtree_control").read_text().split():
            return _writable(Path(point)), 2
    raise RuntimeError("no cpu controller of cgroups is mounted here")


def _writable(point: Path) -> Path:
    if not os.access(point, os.W_OK) or os.geteuid() != 0:
        raise RuntimeError("only root can give processes their shares of a processor here")
    return point
