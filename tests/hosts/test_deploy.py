"""What ``deploy/`` says of machines behind ssh: the very fragment for sshd, and the example files."""

import subprocess
from pathlib import Path

import pytest

from phalanx_coordinator.cluster.reading import parse_cluster
from phalanx_coordinator.members.launch import WorkerProcess
from phalanx_coordinator.members.remote_worker import RemoteWorker
from tests.hosts.lab import Lab
from tests.hosts.workers import shake, with_worker

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("*.toml")), ids=lambda file: file.name)
def test_the_example_files_are_sound(file: Path) -> None:
    assert parse_cluster(file.read_bytes()).workers


async def look(process: WorkerProcess, worker: RemoteWorker) -> tuple[str | None, str]:
    return process.route, (await shake(worker, process.record)).self_test


def attempt(lab: Lab, there: tuple[str, ...], *more: str) -> str:
    """What ssh says when it is asked for more than a worker needs."""
    command = ["ssh", *there, "-F", str(lab.config), "-o", "BatchMode=yes", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("rights", "expected"), [("restrict", "relay"), pytest.param("restrict,port-forwarding", "forward", marks=pytest.mark.slow)]
)
def test_the_rights_of_an_account_are_enough_and_no_more(lab: Lab, rights: str, expected: str) -> None:
    text = (DEPLOY / "sshd_config.phalanx").read_text().replace("Match User phalanx", f"Match User {lab.hosts['alpha'].user}")
    if expected == "forward":
        text = text.replace("    #forward ", "    ").replace("    DisableForwarding", "    # DisableForwarding")
    fragment, keys = lab.folder / "fragment", lab.folder / "restricted_keys"
    fragment.write_text(text)
    keys.write_text(f"{rights} {(lab.folder / 'client_key.pub').read_text()}")
    with lab.server("alpha", AuthorizedKeysFile=str(keys), Include=str(fragment)) as there:
        assert with_worker(lab.record("alpha", *there), look) == (expected, "passed")
        assert "PTY allocation request failed" in attempt(lab, there, "-tt", "alpha", "tty")
        listening = attempt(lab, there, "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:9", "alpha", "true")
        assert "remote port forwarding failed" in listening
        if expected == "relay":
            assert "administratively prohibited" in attempt(lab, there, "-W", "127.0.0.1:22", "alpha")
