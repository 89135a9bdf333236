"""Left-over workers, asked of the machine they are on: ``python -m phalanx_worker.strays`` there, over ssh or here."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members.findings import StrayReport, StrayWorker
from phalanx_coordinator.ssh.command import ssh_command

DEADLINE = 40.0
"""Seconds for the answer: the connection, Python's start, two looks and the grace of those that are ended."""
LONGEST = 1 << 20
"""Bytes of an answer that is read."""


def place_of(record: WorkerRecord) -> tuple[object, ...]:
    """Equal for records of one machine that are reached in one way."""
    return () if record.here else (record.host, record.python, record.ssh_options, record.directory)


def strays_command(record: WorkerRecord, clean: bool) -> list[str]:
    """The command that looks for strays on the record's machine."""
    look = ["-P", "-m", "phalanx_worker.strays", "--json", *(["--clean"] if clean else [])]
    look += ["--place", record.directory] if record.directory else []
    if record.here:
        return [sys.executable, *look]
    return ssh_command(record, [str(record.python), *look])


async def look_for_strays(record: WorkerRecord, clean: bool) -> StrayReport:
    """The strays on the record's machine; the reason where it could not be asked. Nothing is left of the question."""
    try:
        output, status = await _output(strays_command(record, clean))
    except (OSError, TimeoutError):
        return StrayReport(reason=f"{record.name} could not be asked for left-over workers")
    return read_report(output, status, record.name)


def read_report(output: bytes, status: int | None, name: str) -> StrayReport:
    """The report in what the program printed; a profile of the login shell may have printed lines of its own. Pure."""
    for line in reversed(output.splitlines()):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found = json.loads(line)
            return StrayReport(
                strays=tuple(StrayWorker(**stray) for stray in found["strays"]), removed=tuple(found["removed"]),
                directories=int(found["directories"]), directories_removed=int(found["directories_removed"]),
            )  # fmt: skip
    return StrayReport(reason=f"{name} could not say whether workers are left over (exit status {status})")


async def _output(command: Sequence[str]) -> tuple[bytes, int | None]:
    """What a command prints, and its exit status; raises ``OSError`` or ``TimeoutError``."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE):
            output = b""
            while len(output) < LONGEST and (piece := await process.stdout.read(1 << 16)):
                output += piece
            await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        process._transport.close()  # type: ignore[attr-defined]
    return output, process.returncode
