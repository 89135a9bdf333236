"""Runs a worker's daemon on a machine that its coordinator cannot see: ``python -m phalanx_worker.supervisor ARGUMENTS``.

It makes the daemon's private directory, passes its own standard input on to it, and outlives it: whatever becomes of the
daemon, of ssh or of the network, its processes are ended and its directory is removed. It ends with the daemon's exit
status, or 128 and the number of the signal that ended it.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

GRACE = 2.0
"""Seconds the daemon has to end by itself after its input closed; less than the coordinator waits for all of this."""
EXIT_SETUP = 72
FIRST_LEASE = 300.0
"""Seconds for the greeting to come, which names the lease."""


class Supervisor:
    """One daemon and its directory."""

    def __init__(self, command: Sequence[str], directory: Path | None) -> None:
        self._directory = directory
        self._gone = threading.Event()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def run(self, descriptor: int = 0) -> int:
        """Pass input on until the daemon is gone; the exit status of this process."""
        threading.Thread(target=self._pass_on, args=(descriptor,), name="input", daemon=True).start()
        status = self._process.wait()
        self._gone.set()
        self.end()
        return status if status >= 0 else 128 - status

    def end(self) -> None:
        """Kill whatever is left of the daemon, and remove its directory."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _pass_on(self, descriptor: int) -> None:
        """Until the input closes, the lease runs out, or the daemon stops reading; then it has a moment to end."""
        assert self._process.stdin is not None
        sink = self._process.stdin.fileno()
        lease = Lease()
        os.set_blocking(sink, False)
        with contextlib.suppress(OSError):  # it closed its input, or has not read what came: it is ending, or stuck
            while select.select([descriptor], [], [], lease.seconds + GRACE)[0]:
                data = os.read(descriptor, 1 << 16)
                if not data:
                    break
                lease.read(data)
                os.write(sink, data)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if not self._gone.wait(GRACE):
            self.end()


class Lease:
    """The seconds that may pass between two lines of input, once the first one has said so."""

    def __init__(self) -> None:
        self.seconds = FIRST_LEASE
        self._greeting: bytes | None = b""

    def read(self, data: bytes) -> None:
        """Look for the greeting in what came."""
        if self._greeting is None:
            return
        self._greeting += data
        if b"\n" in self._greeting or len(self._greeting) > 4096:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                self.seconds = float(json.loads(self._greeting.partition(b"\n")[0])["lease"])
            self._greeting = None


def private_directory(arguments: Sequence[str]) -> Path | None:
    """Make the directory that the daemon's arguments name; raises OSError."""
    if "--directory" not in arguments:
        return None
    directory = Path(arguments[list(arguments).index("--directory") + 1])
    directory.mkdir(mode=0o700)
    return directory


def not_ready(reason: str, private: str = "") -> None:
    """Tell the coordinator why there is no worker; what is private goes into the log."""
    with contextlib.suppress(OSError):  # nobody may be left to read it
        print("\n" + json.dumps({"ready": 0, "error": reason}), flush=True)  # a profile may have left a line open
        print(private or reason, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervise one daemon."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        directory = private_directory(given)
    except OSError as error:
        not_ready(
            f"no private directory can be made on its machine: {error.strerror}; let directory in its record name a place "
            "there where its account can write",
            f"{error.filename}: {error.strerror}",
        )
        return EXIT_SETUP
    supervisor = Supervisor([sys.executable, "-P", "-m", "phalanx_worker", *given], directory)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: supervisor.end())
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
