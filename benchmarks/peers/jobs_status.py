"""Time of one status of a job whose fit runs meanwhile: read from its directory, through a service, or as a command."""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import phalanx
from benchmarks.peers.jobs_fit import submit
from benchmarks.peers.line import emit

MOST = 200
PAUSE = 0.01


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--ask", choices=("read", "service", "command"), required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        (Path(folder) / "jobs").mkdir(mode=0o700)
        client = stack.enter_context(_service(folder)) if asked.ask == "service" else None
        job = submit(f"{folder}/jobs", asked.epochs)
        while job.status().phase != "updates":
            time.sleep(PAUSE)
        command = [sys.executable, "-m", "phalanx", "status", "--json", "--job", str(job.directory)]
        ways: dict[str, Callable[[], object]] = {
            "read": job.status,
            "service": lambda: client.job("job") if client else None,
            "command": lambda: subprocess.run(command, capture_output=True, check=True),
        }
        times = [_time(ways[asked.ask])]
        while len(times) < MOST and not job.status().ended:
            times.append(_time(ways[asked.ask]))
            time.sleep(PAUSE)
        job.cancel()
        emit(statistics.median(times), check=0.0, distributions=("phalanx",), calls=len(times), slowest_ms=1e3 * max(times))
    phalanx.shutdown()


@contextlib.contextmanager
def _service(folder: str) -> "Iterator[phalanx.connection.Client]":
    command = [sys.executable, "-m", "phalanx", "serve", "--directory", folder, "--socket", f"{folder}/jobs/s", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            socket = json.loads(process.stdout.readline())["socket"]
            with phalanx.connect(socket) as client:
                yield client
        finally:
            process.terminate()


def _time(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
