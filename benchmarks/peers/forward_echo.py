"""What ssh itself carries: a socket forwarded beside a command, as Phalanx does it, and a program that echoes at its end.

A repeat sends ``--down`` bytes and waits for ``--up`` bytes. Nothing is computed, checked or copied twice.
"""

import argparse
import math
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.peers.line import emit
from benchmarks.peers.shares import shares
from phalanx_coordinator.ssh.command import Forward, ssh_command
from tests.hosts.lab import open_lab

FAR = """
import os, socket, sys
path, down, up = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with socket.socket(socket.AF_UNIX) as server:
    server.bind(path)
    server.listen()
    print("ready", flush=True)
    peer, _ = server.accept()
answer = memoryview(bytes(up))
buffer = bytearray(1 << 20)
while True:
    left = down
    while left:
        got = peer.recv_into(buffer, min(left, len(buffer)))
        if not got:
            os.unlink(path)
            sys.exit()
        left -= got
    peer.sendall(answer)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--down", type=int, default=64)
    parser.add_argument("--up", type=int, default=64)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--milliseconds", type=float, default=0.0)
    parser.add_argument("--share", type=float)
    asked = parser.parse_args()
    with ExitStack() as stack:
        given = None if asked.share is None else stack.enter_context(shares(asked.share))
        lab = stack.enter_context(open_lab(isolated=False))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        python = sys.executable
        if given is not None:
            given.join("sshd", lab.servers[0].pid)
            python = str(given.command("member", python))
        record = lab.record("alpha", *(lab.delayed(asked.milliseconds) if asked.milliseconds else ()))
        near, far = Path(folder) / "near.sock", f"{folder}/far.sock"
        program = [python, "-c", FAR, far, str(asked.down), str(asked.up)]
        command = ssh_command(record, program, Forward(near=near, far=far))
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ssh:
            assert ssh.stdout is not None
            ssh.stdout.readline()
            times = _exchange(near, asked.down, asked.up, asked.repeats)
    emit(
        math.fsum(times), units=asked.repeats, check=0.0, p50_ms=statistics.median(times) * 1e3,
        p95_ms=statistics.quantiles(times, n=20)[-1] * 1e3,
        gigabytes_a_second=(asked.down + asked.up) * asked.repeats / math.fsum(times) / 1e9,
    )  # fmt: skip


def _exchange(near: Path, down: int, up: int, repeats: int) -> list[float]:
    """Seconds of each repeat; the first one is not counted."""
    question, buffer, times = memoryview(bytes(down)), bytearray(1 << 20), []
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(near))
        for _ in range(repeats + 1):
            began = time.perf_counter()
            line.sendall(question)
            left = up
            while left:
                left -= line.recv_into(buffer, min(left, len(buffer)))
            times.append(time.perf_counter() - began)
    return times[1:]


if __name__ == "__main__":
    main()
