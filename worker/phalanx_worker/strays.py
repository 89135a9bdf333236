"""Left-over workers of this user on this machine: ``python -m phalanx_worker.strays [--clean] --json``. Imports no JAX.

A worker belongs to the nearest process above it that is neither a worker of ours nor a shell that only carries one: the
coordinator, or the ssh session that its coordinator holds. A *stray* has no such owner any more: the line of its parents ends
at the process that adopts orphans. It should have ended by itself, so something keeps it from doing so (it is stopped, or
hangs in a driver). A worker of a living job always has its owner, so it is never a stray; nor is one whose parents cannot be
followed. A stray is believed only when it is seen twice, since a worker whose owner has just gone is about to end.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from phalanx_worker import stray_directories

SECOND_LOOK = 3.0
"""Seconds between the two looks."""
GRACE = 3.0
"""Seconds that a stray has to end by itself once it may run again."""
KINDS: Mapping[str, str] = {
    "phalanx_worker": "daemon", "phalanx_worker.engine_process": "engine", "phalanx_coordinator.ssh.relay": "relay",
}  # fmt: skip
"""Of the modules that run as processes; another one of the worker's goes by its own name."""
SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh", "csh", "tcsh", "fish", "busybox", "env", "nice", "setsid"))
ADOPTERS = frozenset(("init", "systemd", "launchd", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan", "conmon"))
"""Processes that orphans fall to, besides number 1."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One process as it was seen."""

    pid: int
    parent: int
    user: int | None
    """Number of its owner; None where that cannot be read."""
    name: str
    command: tuple[str, ...] = ()
    """Empty where it cannot be read."""
    terminal: bool = False
    created: float = 0.0
    """Unix time."""
    stopped: bool = False

    @property
    def kind(self) -> str | None:
        """What of ours it is; None for anything else. This program itself is not a worker."""
        if self.command and Path(self.command[0]).name == "ssh":  # the line that it runs over there is one word
            return "ssh" if re.search(r" -m phalanx_worker(?!\.strays)\b", self.command[-1]) else None
        for flag, module in pairwise(self.command):
            package, _, name = module.partition(".")
            if flag == "-m" and (package == "phalanx_worker" or module in KINDS) and name != "strays":
                return KINDS.get(module, name)
        return None


@dataclass(frozen=True, kw_only=True)
class Stray:
    """One left-over worker: the highest process of it."""

    pid: int
    kind: str
    """daemon, engine, relay, ssh and the like."""
    processes: int
    """It and all below it."""
    started: float
    """Unix time."""
    stopped: bool


def find_strays(seen: Iterable[Seen], user: int) -> list[Stray]:
    """The strays of ``user`` among all processes of a machine. Pure."""
    table = {process.pid: process for process in seen}
    orphans = [process for process in table.values() if process.user == user and process.kind and _orphaned(process, table)]
    numbers = {process.pid for process in orphans}
    highest = [process for process in orphans if not numbers & set(_above(process, table))]
    return [
        Stray(
            pid=process.pid, kind=process.kind or "", started=process.created, stopped=process.stopped,
            processes=sum(process.pid in (other.pid, *_above(other, table)) for other in table.values()),
        )
        for process in sorted(highest, key=lambda process: process.pid)
    ]  # fmt: skip


def _above(process: Seen, table: Mapping[int, Seen]) -> list[int]:
    """Its parents, the nearest first."""
    found: list[int] = []
    while process.parent in table and process.parent not in found:
        process = table[process.parent]
        found.append(process.pid)
    return found


def _orphaned(process: Seen, table: Mapping[int, Seen]) -> bool:
    for pid in _above(process, table):
        parent = table[pid]
        if parent.kind is None and not _carries(parent):
            return _adopts(parent, process.user)
    return False  # its parents lead out of what can be seen


def _carries(process: Seen) -> bool:
    """Whether it is a shell without a terminal, as sshd puts one between itself and what it was asked to run."""
    return process.name.lstrip("-") in SHELLS and not process.terminal and process.pid != 1


def _adopts(process: Seen, user: int | None) -> bool:
    """Whether orphans fall to it. In a container the first process may be the coordinator itself: that one is no adopter."""
    if process.pid != 1:
        return process.name in ADOPTERS
    program = Path(process.command[0]).name if process.command else process.name
    return process.user != user or not program.startswith(("python", "phalanx", "ipython", "jupyter"))


def look() -> list[Seen]:
    """Every process of this machine that can be seen."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
            found.append(_seen(process))
    return found


def _seen(process: psutil.Process) -> Seen:
    user: int | None = None
    command: tuple[str, ...] = ()
    terminal = False
    with contextlib.suppress(psutil.AccessDenied, psutil.ZombieProcess):
        user = process.uids().real
    with contextlib.suppress(psutil.AccessDenied, psutil.ZombieProcess):
        command = tuple(process.cmdline())
    with contextlib.suppress(psutil.AccessDenied, psutil.ZombieProcess):
        terminal = process.terminal() is not None
    return Seen(
        pid=process.pid, parent=process.ppid(), user=user, name=process.name(), command=command, terminal=terminal,
        created=process.create_time(), stopped=process.status() == psutil.STATUS_STOPPED,
    )  # fmt: skip


def confirmed(user: int, second_look: float = SECOND_LOOK) -> list[Stray]:
    """Strays that are there now and were there ``second_look`` seconds ago; no wait where there are none."""
    before = {(stray.pid, stray.started) for stray in find_strays(look(), user)}
    if not before:
        return []
    time.sleep(second_look)
    return [stray for stray in find_strays(look(), user) if (stray.pid, stray.started) in before]


def end(strays: Sequence[Stray], grace: float = GRACE) -> list[int]:
    """End strays, with what is below them and their private directories; returns those that are still there.

    Each is first let run and asked to end, which makes it tidy up, and then ended by force.
    """
    families: dict[int, list[psutil.Process]] = {}
    directories: set[Path] = set()
    for stray in strays:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(stray.pid)
            if process.create_time() == stray.started:
                families[stray.pid] = [process, *process.children(recursive=True)]
                directories |= private_directories(process)
    everybody = [process for family in families.values() for process in family]
    for family in families.values():
        with contextlib.suppress(psutil.Error):
            family[0].terminate()
            family[0].resume()
    for process in _wait(everybody, grace):
        with contextlib.suppress(psutil.Error):
            process.kill()
    left = _wait(everybody, grace)
    for directory in directories:
        _remove(directory)
    still = {process.pid for process in left}
    return [pid for pid, family in families.items() if still & {process.pid for process in family}]


def _wait(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still live after ``seconds``; one that ended and that nobody waits for, as in a container, is gone."""
    deadline = time.monotonic() + seconds
    left = list(processes)
    while (left := [process for process in left if _lives(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def private_directories(process: psutil.Process) -> set[Path]:
    """Where a daemon's socket lies: it holds the directory open."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = entry.readlink()
                if target.name.startswith("phalanx-") and target.is_dir() and target.stat().st_uid == os.geteuid():
                    found.add(target)
    return found


def _remove(directory: Path) -> None:
    """Remove a socket and its directory, if nothing else lies in it."""
    with contextlib.suppress(OSError):
        (directory / "worker.sock").unlink(missing_ok=True)
        directory.rmdir()


def main(arguments: Sequence[str] | None = None) -> int:
    """Find strays and left-over directories, with ``--clean`` end or remove them; exit code 1 where one could not be ended."""
    parser = argparse.ArgumentParser(prog="python -m phalanx_worker.strays", description="Left-over workers of this user.")
    parser.add_argument("--clean", action="store_true", help="end them")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--place", action="append", default=[], help="where else workers make their private directories")
    given = parser.parse_args(arguments)
    strays = confirmed(os.getuid())
    left = end(strays) if given.clean else [stray.pid for stray in strays]
    removed = [stray.pid for stray in strays if stray.pid not in left]
    directories = stray_directories.find(stray_directories.places(given.place))
    cleared = stray_directories.remove(directories) if given.clean else []
    if given.json:
        report = {
            "strays": [dataclasses.asdict(stray) for stray in strays], "removed": removed,
            "directories": len(directories), "directories_removed": len(cleared),
        }  # fmt: skip
        print("\n" + json.dumps(report), flush=True)
    else:
        for directory in directories:
            print(f"{directory}: {'removed' if directory in cleared else 'left over'}")
        for stray in strays:
            state = "removed" if stray.pid in removed else "stopped" if stray.stopped else "there"
            print(f"{stray.kind} {stray.pid}, {stray.processes} processes: {state}")
    return 1 if given.clean and left else 0


if __name__ == "__main__":
    sys.exit(main())
