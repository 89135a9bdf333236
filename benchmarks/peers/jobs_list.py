"""Time to list many directories of ended jobs, in this process or as the whole command; the check is their number."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.peers.line import emit
from phalanx_proto import job_files
from phalanx_proto.job_status import JobStatus
from phalanx_proto.jobs import MemberStatus
from phalanx_proto.result import to_text

MEMBERS = tuple(MemberStatus(name=f"local-{n}", state="computing", rows=10**6, latency=0.001) for n in (1, 2))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directories", type=int, required=True)
    parser.add_argument("--command", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.directories):
            _make(Path(folder) / f"job-{number:05}")
        began = time.perf_counter()
        if asked.command:
            command = [sys.executable, "-m", "phalanx", "jobs", folder, "--json"]
            ran = subprocess.run(command, capture_output=True, check=True)
            seconds, found = time.perf_counter() - began, len(json.loads(ran.stdout)["jobs"])
        else:
            listed, _ = job_files.listed(Path(folder))
            seconds, found = time.perf_counter() - began, len(listed)
    assert found == asked.directories
    emit(seconds, check=float(found), distributions=("phalanx",))


def _make(path: Path) -> None:
    path.mkdir()
    status = JobStatus(
        job=path.name, kind="fit", state="COMPLETE", phase="updates", update=1000, updates=1000, epoch=9, loss=0.1,
        validation_loss=0.2, done=1000, total=1000, seconds=12.5, attempts=1, events=2, members=MEMBERS,
    )  # fmt: skip
    (path / job_files.STATUS).write_text(to_text(status.to_document()))
    (path / job_files.MANIFEST).write_text(to_text({"format": 1, "kind": "fit", "padding": "x" * 4000}))


if __name__ == "__main__":
    main()
