"""What a runner does with its job's directory: take it over, carry the request out, say how it ended."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from phalanx_coordinator.job_directory.directory import JobDirectory
from phalanx_coordinator.jobs.resuming import carry_out
from phalanx_coordinator.session import Coordinator
from phalanx_proto.errors import Cancelled, PhalanxError
from phalanx_proto.jobs import unwatched

FAILED = 1


def run(path: Path, handed_on: int | None) -> int:
    """Run the job of a directory; gives the exit code."""
    try:
        directory = JobDirectory.open(path, handed_on=handed_on)
    except PhalanxError as error:
        print(f"coordinator: {error.message}", file=sys.stderr, flush=True)
        return error.exit_code
    keep_awake()
    return asyncio.run(_run(directory))


def keep_awake() -> None:
    """On macOS, keep the machine from falling asleep for want of a user as long as this process is there."""
    if sys.platform == "darwin":
        with contextlib.suppress(OSError):
            subprocess.Popen(["caffeinate", "-i", "-w", str(os.getpid())], stdin=subprocess.DEVNULL)


async def _run(directory: JobDirectory) -> int:
    coordinator = Coordinator()
    work = asyncio.ensure_future(carry_out(coordinator, directory, unwatched))
    _cancel_on_signals(work)
    try:
        await work
        return 0
    except asyncio.CancelledError:
        return Cancelled.exit_code
    except PhalanxError as error:
        directory.log("coordinator", f"{type(error).__name__}: {error}")
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return FAILED
    finally:
        await coordinator.close()


def _cancel_on_signals(work: "asyncio.Future[Any]") -> None:
    """The first signal cancels; more of them do not disturb the ending."""
    asked = False

    def cancel() -> None:
        nonlocal asked
        if not asked:
            asked = True
            work.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, cancel)
