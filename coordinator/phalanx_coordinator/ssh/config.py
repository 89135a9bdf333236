"""What ssh makes of a record: the person's own configuration, as ``ssh -G`` prints it."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.ssh.command import query_command

DEADLINE = 10.0
"""Seconds for ssh to read its configuration, which may run commands of the person's."""


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where ssh would go. All of it is private."""

    hostname: str
    port: int = 22
    user: str = ""
    known_hosts: str = ""
    """The first file of known hosts."""
    key_alias: str = ""
    """The name under which the host key is looked up, where that is not the host's."""
    behind: bool = False
    """Whether it is reached through another machine or a command."""
    forwards: bool = False
    """Whether the person's configuration forwards something of its own for this host."""


def parse(text: str) -> Destination | None:
    """The destination in the output of ``ssh -G``; None where there is none. Pure."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name.lower(), value.strip())
    if "hostname" not in found:
        return None
    return Destination(
        hostname=found["hostname"],
        port=int(found["port"]) if found.get("port", "").isdigit() else 22,
        user=found.get("user", ""),
        known_hosts=_first(found.get("userknownhostsfile", "").split()),
        key_alias=found.get("hostkeyalias", ""),
        behind=any(found.get(name, "none") != "none" for name in ("proxyjump", "proxycommand")),
        forwards=any(name in found for name in ("localforward", "remoteforward", "dynamicforward")),
    )


def _first(words: Sequence[str]) -> str:
    return words[0] if words else ""


async def destination(record: WorkerRecord) -> Destination | None:
    """Ask ssh; None where it does not say (its own errors come again, with their words, when it is started)."""
    try:
        process = await asyncio.create_subprocess_exec(
            *query_command(record), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except OSError:
        return None
    try:
        async with asyncio.timeout(DEADLINE):
            output, _ = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return parse(output.decode(errors="replace"))
