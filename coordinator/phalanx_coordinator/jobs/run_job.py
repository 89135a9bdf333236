"""``python -m phalanx_coordinator.jobs.run_job DIR``: the coordinator of one job, alone, whatever becomes of who asked for it.

It leaves the session and the parent that it was started from before it loads anything. SIGTERM and SIGINT cancel the job;
SIGHUP means nothing to it. It ends when the job does.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The arguments; nobody types them."""
    found = argparse.ArgumentParser(prog="python -m phalanx_coordinator.jobs.run_job", description=__doc__, allow_abbrev=False)
    found.add_argument("directory", type=Path)
    found.add_argument("--lock", type=int, help="the directory's lock, as an open file of whoever started this")
    return found


def detach() -> None:
    """Go on as an orphan with a session of its own; this process ends. Nothing is loaded yet, and no thread runs."""
    if os.fork():
        os._exit(0)
    os.setsid()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job and exit with the code of its end."""
    given = parser().parse_args(arguments)
    detach()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from phalanx_coordinator.jobs.runner import run

    sys.exit(run(given.directory, given.lock))


if __name__ == "__main__":
    main()
