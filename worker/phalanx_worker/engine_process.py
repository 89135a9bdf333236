"""The entry point of an engine process: ``python -m phalanx_worker.engine_process FD BACKEND ORDINAL``.

It reads operations from the Unix socket ``FD`` and ends with its peer. The first message it sends is the ready report, after
the self-tests; later ones answer operations one by one.
"""

import os
import select
import signal
import socket
import sys
import threading
import traceback
from typing import Any

from phalanx_proto.errors import EngineFailed, PhalanxError, to_wire
from phalanx_worker import channel
from phalanx_worker.confinement import confine, memory_bound


def _failure(error: Exception) -> dict[str, Any]:
    if not isinstance(error, PhalanxError):
        traceback.print_exc()
        error = EngineFailed(f"an engine met a fault of its own, which should be reported: {type(error).__name__}: {error}")
    return {"error": to_wire(error).decode()}


def _end_with_peer(descriptor: int) -> None:
    poller = select.poll()
    poller.register(descriptor, 0)  # only hang-ups and errors: whatever the engine is doing, it ends with its owner
    while not any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poller.poll()):
        continue
    os._exit(0)


def serve(sock: socket.socket, backend: str, ordinal: int) -> None:
    """Answer operations until the peer closes the socket."""
    from phalanx_worker.host import Host  # imports jax, so only here, with the environment set by our parent

    try:
        host = Host(backend, ordinal, alive=lambda: None)
        host.self_test()
        ready = host.handle({"op": "describe"}).body
    except Exception as error:
        channel.send(sock, _failure(error))
        return
    channel.send(sock, ready)
    decoder = channel.Decoder()
    while (message := channel.receive(sock, decoder)) is not None:
        try:
            reply = host.handle(message.body, message.payload, message.descriptors)
        except Exception as error:
            channel.send(sock, _failure(error))
        else:
            channel.send(sock, reply.body, reply.payload)


def main() -> None:
    """Serve the socket named on the command line. Interrupts are the owner's business, not ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, backend, ordinal = sys.argv[1:4]
    confine(backend, memory_bound())
    with socket.socket(fileno=int(descriptor)) as sock:
        threading.Thread(target=_end_with_peer, args=(sock.fileno(),), daemon=True).start()
        try:
            serve(sock, backend, int(ordinal))
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


if __name__ == "__main__":
    main()
