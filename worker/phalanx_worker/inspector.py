"""The disposable process that reads untrusted programs: ``python -m phalanx_worker.inspector FD MEMORY_BYTES``.

It has bounded memory and processor time and writes no core. Its first message on the Unix socket ``FD`` is the verdict
of the self-tests; then it answers one artifact at a time with an inspection or a refusal. It ends with its peer. A
parser that crashes takes this process along and nothing else; ``inspection`` is the other end.
"""

import contextlib
import dataclasses
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
from typing import Any

from phalanx_proto.artifacts import Signature
from phalanx_proto.errors import EngineFailed, ProgramRefused, to_wire
from phalanx_proto.handshake import PASSED
from phalanx_worker import channel

PROCESSOR_SECONDS = 120
"""Processor time of one artifact."""
OUTPUT_BYTES = 1 << 20
"""Of what a library prints: the output goes to a file."""


def _limit(kind: int, value: int) -> None:
    """Lower a soft limit; not every system can (macOS has no limit on address space)."""
    _, hard = resource.getrlimit(kind)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _confine(memory: int) -> None:
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, memory)
    _limit(resource.RLIMIT_FSIZE, OUTPUT_BYTES)


def _allow_processor_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + PROCESSOR_SECONDS)


def _self_test() -> str:
    """``PASSED``, or what failed. Loads JAX."""
    from phalanx_worker import selftest

    try:
        selftest.require()
    except EngineFailed as error:
        return error.message
    return PASSED


def _answer(body: dict[str, Any], data: bytes) -> dict[str, Any]:
    from phalanx_proto.program_rules import inspect_module

    expected = None if body["signature"] is None else Signature.from_document(body["signature"])
    name, digest = str(body["name"]), str(body["digest"])
    try:
        found = inspect_module(data, name=name, expected=expected)
        if digest and found.digest != digest:
            raise ProgramRefused(f"program {name!r}: its digest is {found.digest}, wanted {digest}")
    except ProgramRefused as error:
        return {"refused": json.loads(to_wire(error))}
    return {"inspection": dataclasses.asdict(found)}


def _end_with_peer(descriptor: int) -> None:
    poller = select.poll()
    poller.register(descriptor, 0)
    while not any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poller.poll()):
        continue
    os._exit(0)


def main() -> None:
    """Answer until the peer closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, memory = int(sys.argv[1]), int(sys.argv[2])
    _confine(memory)
    _allow_processor_time()
    threading.Thread(target=_end_with_peer, args=(descriptor,), daemon=True).start()
    with socket.socket(fileno=descriptor) as sock:
        channel.send(sock, {"self_test": _self_test()})
        decoder = channel.Decoder()
        while (message := channel.receive(sock, decoder)) is not None:
            _allow_processor_time()
            channel.send(sock, _answer(message.body, message.payload))


if __name__ == "__main__":
    main()
