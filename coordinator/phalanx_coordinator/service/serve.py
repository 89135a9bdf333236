"""``phalanx serve``: a coordinator service of this user, on a Unix socket that is nobody else's.

It runs until SIGTERM or Ctrl-C. The jobs that it has started go on without it; those that wait are taken up by the next
service of the same directory.
"""

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from phalanx_coordinator.engines_here import require_engines
from phalanx_coordinator.jobs.keeper import JobKeeper
from phalanx_coordinator.service.array_store import ArrayStore
from phalanx_coordinator.service.service import CoordinatorServicer, start_server
from phalanx_coordinator.session import Coordinator
from phalanx_proto.errors import InvalidRequest, PhalanxError, Unavailable
from phalanx_proto.user_directories import default_socket, private, socket_path, state_directory
from phalanx_worker.inventory import inventory

JOBS, ARRAYS = "jobs", "arrays"


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    found = argparse.ArgumentParser(prog="phalanx serve", description=__doc__, allow_abbrev=False)
    found.add_argument("--directory", type=Path, help="where jobs and arrays are kept; default: in your state directory")
    found.add_argument("--slots", type=int, help="CPU slots that all jobs together may use; default: all of this machine's")
    found.add_argument("--socket", type=Path, help="where to listen; default: in your runtime directory")
    found.add_argument("--where", action="store_true", help="print the socket that a service would listen on, and end")
    found.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    return found


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock beside a socket, or in a directory, before either is used; raises ``Unavailable``."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Unavailable(
            f"another service holds {path}: connect to that one, or name another --socket and --directory"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


async def serve(directory: Path, socket: Path, slots: int, as_json: bool) -> None:
    """Serve until cancelled; says on standard output when it is ready."""
    coordinator = Coordinator()
    jobs = private(directory / JOBS)
    keeper = JobKeeper(jobs, slots, coordinator)
    await keeper.recover()
    socket.unlink(missing_ok=True)  # its lock is ours
    stop = await start_server(CoordinatorServicer(keeper, ArrayStore(directory / ARRAYS), coordinator), f"unix:{socket}")
    socket.chmod(0o600)
    ready = {"ready": 1, "pid": os.getpid(), "socket": str(socket), "directory": str(directory), "slots": slots}
    text = f"listening on {socket}, with {slots} slot{'s' if slots > 1 else ''}; jobs are kept in {directory}"
    print(json.dumps(ready) if as_json else text, flush=True)
    try:
        await keeper.run()
    finally:
        await stop()
        keeper.close()
        await coordinator.close()
        socket.unlink(missing_ok=True)


async def _until_signal(directory: Path, socket: Path, slots: int, as_json: bool) -> None:
    task = asyncio.ensure_future(serve(directory, socket, slots, as_json))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve, and exit with a code that means something."""
    os.umask(0o077)
    given = parser().parse_args(arguments)
    try:
        socket = socket_path((given.socket or default_socket()).expanduser().absolute())
        if given.where:
            print(json.dumps({"socket": str(socket)}) if given.json else socket, flush=True)
            return
        require_engines()
        slots = inventory(False).slots if given.slots is None else given.slots
        if slots < 1:
            raise InvalidRequest(f"--slots must be at least 1, not {slots}")
        directory = private((given.directory or state_directory() / "service").expanduser().absolute())
        with only_one(private(socket.parent) / f"{socket.name}.lock"), only_one(directory / "lock"):
            asyncio.run(_until_signal(directory, socket, slots, given.json))
    except PhalanxError as error:
        print(f"error: {error.message}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
