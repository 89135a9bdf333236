"""The worker's process: ``python -m phalanx_worker`` (or ``phalanx worker``), started by a coordinator, never by hand.

Standard input: one JSON line {"token", "lease"}, then any line within each ``lease`` seconds; it ends when the input
closes or the lease runs out. Standard output: an empty line, one JSON ready line, then one beat a second.
Standard error: the log.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx_proto.errors import InvalidRequest, PhalanxError
from phalanx_proto.handshake import PASSED, PROTOCOL
from phalanx_worker.admission import Admission
from phalanx_worker.allocation import require_slots
from phalanx_worker.blobs import BlobStore
from phalanx_worker.confinement import confine, memory_bound
from phalanx_worker.environment import enter_for
from phalanx_worker.housing import EXIT_OVERRUN, EXIT_SETUP, Housing, beat, keep_lease
from phalanx_worker.identity import handshake
from phalanx_worker.inspection import Inspector
from phalanx_worker.inventory import Inventory, inventory
from phalanx_worker.pool import EngineProcess, Followers, SlotSpec, start_all
from phalanx_worker.watchdog import Watchdog


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line and the first line of input say."""

    slots: int
    backend: str
    ordinal: int
    oversubscribe: bool
    directory: Path | None
    deadline: float
    """Seconds that one piece of engine work may take."""
    token: str
    lease: float
    """Seconds within which a line must come on standard input."""


def parser() -> argparse.ArgumentParser:
    """The arguments of a worker."""
    found = argparse.ArgumentParser(prog="phalanx worker", description=__doc__, allow_abbrev=False)
    found.add_argument("--slots", type=int, default=1)
    found.add_argument("--backend", choices=("cpu", "cuda", "mps"), default="cpu")
    found.add_argument("--ordinal", type=int, default=0)
    found.add_argument("--oversubscribe", action="store_true")
    found.add_argument("--directory", type=Path, help="a private directory for the socket, gone at the end; default: a new one")
    found.add_argument("--deadline", type=float, default=900.0, help="seconds one piece of work may take")
    return found


def parse(arguments: Sequence[str], read_line: Callable[[], str]) -> Settings:
    """Settings from the arguments, and from the first line where these are sound; raises InvalidRequest."""
    known = parser().parse_args(arguments)
    if known.slots < 1:
        raise InvalidRequest(f"this worker: asked for {known.slots} slots; at least 1 is needed")
    try:
        greeting = json.loads(read_line())
        token, lease = str(greeting["token"]), float(greeting["lease"])
    except (ValueError, TypeError, KeyError):
        raise InvalidRequest(
            'a worker is started by a coordinator, which writes {"token": …, "lease": …} to its standard input first; '
            "to compute on this machine, write it into a cluster file, or use phalanx fit"
        ) from None
    if len(token) < 16 or not 1 <= lease <= 3600:
        raise InvalidRequest("the token must have at least 16 characters and the lease 1 to 3600 seconds")
    return Settings(**vars(known), token=token, lease=lease)


def _first_line() -> str:
    if os.isatty(0):  # a person is not asked for what a coordinator says
        return ""
    # Byte by byte: what follows belongs to the lease.
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < 4096:
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line.decode(errors="replace")


async def serve(settings: Settings, housing: Housing, machine: Inventory) -> None:
    """Start the engines and the server, say that it is ready, and serve until the process is ended."""
    inspector = Inspector()
    slot = SlotSpec(backend=settings.backend, ordinal=settings.ordinal)
    followers = Followers([EngineProcess(str(n), slot) for n in range(2, settings.slots + 1)])
    starting = asyncio.gather(start_all(followers.engines), asyncio.to_thread(inspector.self_test, 120.0))
    await asyncio.sleep(0)  # their processes are there now, and load JAX while this one does
    from phalanx_worker.host import Host
    from phalanx_worker.service import start_server
    from phalanx_worker.state import WorkerState

    host = Host(settings.backend, settings.ordinal, followers.check)
    _, verdict = await starting
    if verdict == PASSED:
        host.self_test()
    memory = machine.memory.cgroup_limit or machine.memory.total or 8 << 30
    watchdog = Watchdog(settings.deadline, lambda reason: housing.leave(EXIT_OVERRUN, reason))
    watchdog.start()
    known = handshake(machine, slots=settings.slots, backend=settings.backend, self_test=verdict)
    state = WorkerState(
        host=host, followers=followers, blobs=BlobStore(memory // 4), inspector=Admission(inspector), watchdog=watchdog,
        handshake=lambda: known,
    )  # fmt: skip
    stop = await start_server(state, settings.token, f"unix:{housing.socket}")
    housing.socket.chmod(0o600)
    ready = {"ready": 1, "protocol": PROTOCOL, "socket": str(housing.socket), "pid": os.getpid()}
    print("\n" + json.dumps(ready), flush=True)  # on a line of its own, whatever a profile of the shell has printed
    threading.Thread(target=beat, args=(housing.leave,), name="beat", daemon=True).start()
    try:
        await asyncio.Event().wait()
    finally:
        await stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a worker until its coordinator lets it go."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the coordinator's to handle
    housing = None
    try:
        given = sys.argv[1:] if arguments is None else list(arguments)
        enter_for(given)
        settings = parse(given, _first_line)
        confine(settings.backend, memory_bound())
        machine = inventory(settings.backend != "cpu")
        if settings.backend == "cpu" and not settings.oversubscribe:
            require_slots(settings.slots, machine.allocation, "this worker")
        housing = Housing(settings.directory)
        leave = housing.leave
        threading.Thread(target=keep_lease, args=(settings.lease, leave), name="lease", daemon=True).start()
        signal.signal(signal.SIGTERM, lambda *_: leave(0, "ended by SIGTERM"))
        asyncio.run(serve(settings, housing, machine))
    except PhalanxError as error:
        _fail(housing, error.message)
    except Exception as error:
        traceback.print_exc()
        _fail(housing, f"it met a fault of its own, which should be reported ({type(error).__name__}); its log says more")


def _fail(housing: Housing | None, reason: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be left to read it
        print("\n" + json.dumps({"ready": 0, "error": reason}), flush=True)
    if housing is None:
        print(f"phalanx worker: {reason}", file=sys.stderr, flush=True)
        raise SystemExit(EXIT_SETUP)
    housing.leave(EXIT_SETUP, reason)


if __name__ == "__main__":
    main()
