"""A worker behind a real sshd starts, or says what is wrong and what to do, and leaves nothing on either end."""

import socket
import sys
from pathlib import Path

import pytest

from phalanx_coordinator.members.launch import WorkerProcess
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.members.timing import Deadlines
from phalanx_proto.errors import PhalanxError, Unavailable, WorkerLost
from phalanx_proto.handshake import Handshake
from tests.hosts.lab import Lab, free_port
from tests.hosts.machines import LONG_HOME
from tests.hosts.workers import refusal, shake, with_worker

Seen = tuple[str | None, Handshake]


async def look(process: WorkerProcess, worker: RemoteWorker) -> Seen:
    return process.route, await shake(worker, process.record)


def failure(error: PhalanxError) -> str:
    return str(error.details["failure"])


def test_a_forward_carries_the_calls(lab: Lab) -> None:
    route, found = with_worker(lab.record(), look)
    assert (route, found.self_test) == ("forward", "passed")


NAMED_LIKE_MODULES = ("json.py", "asyncio.py", "numpy.py")
NO_SOCKETS = [{"AllowStreamLocalForwarding": "no"}, {"DisableForwarding": "yes"}]


@pytest.mark.parametrize("settings", [NO_SOCKETS[0], pytest.param(NO_SOCKETS[1], marks=pytest.mark.slow)], ids=str)
def test_a_relay_carries_them_where_sockets_are_not_forwarded(lab: Lab, settings: dict[str, str]) -> None:
    said: list[str] = []
    with lab.server("alpha", **settings) as there:
        route, found = with_worker(lab.record("alpha", *there), look, log=lambda worker, line: said.append(line))
    assert (route, found.self_test) == ("relay", "passed")
    assert "its machine forwards no sockets; it is started again behind a relay" in said


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, "forward"), pytest.param(NO_SOCKETS[0], "relay", marks=pytest.mark.slow)], ids=str
)
def test_noise_before_the_first_word_is_passed_over(apart: Lab, settings: dict[str, str], expected: str) -> None:
    """A banner, a profile that prints, a proxy that is set, and files in the home that are named like modules."""
    machine = apart.hosts["alpha"].machine
    assert machine is not None
    banner = apart.folder / "banner"
    banner.write_text("* * * Authorised users only * * *\n" * 3)
    home = machine.path("/home/ada")
    (home / ".bashrc").write_text(
        "echo 'Welcome to alpha!'; echo '{\"ready\": 0'; echo oops >&2; export http_proxy=http://198.18.0.1:1\n"
        "for n in {1..3000}; do printf %0700d, $n; done; printf '\\033]0;%s\\007' alpha\n"
    )
    for name in NAMED_LIKE_MODULES:
        (home / name).write_text("raise SystemExit('a file in the home')\n")
    try:
        with apart.server("alpha", Banner=str(banner), **settings) as there:
            route, found = with_worker(apart.record("alpha", *there), look)
        assert (route, found.self_test) == (expected, "passed")
    finally:
        for name in (".bashrc", *NAMED_LIKE_MODULES):
            (home / name).unlink()


@pytest.mark.slow
def test_the_persons_own_forwards_do_not_listen_for_us(lab: Lab) -> None:
    port = free_port()
    config = lab.folder / "own_config"
    own = f"Host *\n    LocalForward {port} 127.0.0.1:9\n    RequestTTY force\n    RemoteCommand false\n"
    config.write_text(f"{lab.config.read_text()}\n{own}")
    record = lab.record(ssh_options=("-F", str(config)))
    route, found = with_worker(record, look)
    assert (route, found.self_test) == ("relay", "passed")


@pytest.mark.slow
def test_a_machine_behind_another(apart: Lab) -> None:
    route, found = with_worker(apart.record("gamma-inside"), look)
    assert (route, found.self_test) == ("forward", "passed")


@pytest.mark.slow
def test_a_very_long_home_is_no_matter(apart: Lab) -> None:
    route, _ = with_worker(apart.record("alpha", "-o", "User=long"), look)
    assert route == "forward" and len(LONG_HOME) > 107


def test_an_unknown_key(lab: Lab) -> None:
    error = refusal(lab.record("beta", "-o", "UserKnownHostsFile=/dev/null"))
    assert failure(error) == "unknown_key"
    host = lab.hosts["beta"]
    assert f"ssh-keyscan -p {host.port} {host.address} >> /dev/null" in error.private


def test_a_changed_key(lab: Lab) -> None:
    host = lab.hosts["beta"]
    other = lab.folder / "other_known_hosts"
    name = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
    other.write_text(f"{name} {(lab.folder / 'client_key.pub').read_text()}")
    error = refusal(lab.record("beta", "-o", f"UserKnownHostsFile={other}"))
    assert failure(error) == "changed_key"
    assert "THE HOST KEY OF ITS MACHINE HAS CHANGED" in error.message
    assert f"-f {other}" in error.private and "ssh-keygen -R" in error.private


def test_no_authentication(lab: Lab) -> None:
    other = lab.folder / "other_config"
    other.write_text(lab.config.read_text().replace("client_key", "alpha_key"))
    assert failure(refusal(lab.record("beta", ssh_options=("-F", str(other))))) == "refused_key"


def test_no_such_host(lab: Lab) -> None:
    assert failure(refusal(lab.record("beta", "-o", "HostName=no-such-host.invalid"))) == "no_host"


def test_a_closed_port(lab: Lab) -> None:
    assert failure(refusal(lab.record("beta", "-o", "Port=9"))) == "connection_refused"


def test_a_server_that_never_answers(lab: Lab) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        error = refusal(lab.record("beta", "-o", "HostName=127.0.0.1", "-o", f"Port={port}", "-o", "ConnectTimeout=1"))
    assert failure(error) == "timed_out"


def test_a_network_that_is_not_there(apart: Lab) -> None:
    error = refusal(apart.record("beta", "-o", "HostName=203.0.113.1", "-o", "BindAddress=198.18.255.254"))
    assert failure(error) in ("no_route", "closed_early")


def test_no_such_executable(lab: Lab) -> None:
    error = refusal(lab.record(python="/opt/no such/bin/python"))
    assert (type(error), failure(error)) == (Unavailable, "no_executable")
    assert "python = '/opt/no such/bin/python' is not on that machine" in error.private


def test_not_executable(lab: Lab) -> None:
    assert failure(refusal(lab.record(python="/etc/passwd"))) == "not_executable"


@pytest.mark.parametrize("program", ["/bin/true", "/bin/echo"])
def test_not_a_python(lab: Lab, program: str) -> None:
    error = refusal(lab.record(python=program))
    assert failure(error) == "not_phalanx" and "is it a Phalanx worker?" in error.message


def test_a_program_that_repeats_its_input_does_not_tell_the_token(lab: Lab) -> None:
    script = lab.folder / "repeat"
    script.write_text("#!/bin/sh\nexec cat\n")
    script.chmod(0o755)
    error = refusal(lab.record(python=str(script)), Deadlines(start=2.0))
    assert failure(error) == "late" and '{"token": "(token)"' in error.private


def test_a_python_without_phalanx(lab: Lab) -> None:
    base = Path(sys.base_prefix) / "bin" / "python3"
    error = refusal(lab.record(python=str(base)))
    assert failure(error) == "not_phalanx"
    assert "phalanx enroll alpha" in error.private


def test_an_account_without_a_shell(apart: Lab) -> None:
    assert failure(refusal(apart.record("alpha", "-o", "User=nobody-home"))) == "no_login"


@pytest.mark.parametrize(
    ("directory", "why"),
    [("/tmp/full", "No space left on device"), ("/nowhere", "No such file or directory"), ("/etc", "Permission denied")],
)
def test_no_place_for_a_socket(apart: Lab, directory: str, why: str) -> None:
    error = refusal(apart.record(directory=directory))
    assert failure(error) == "not_ready"
    assert f"no private directory can be made on its machine: {why}; let directory in its record name" in error.message


@pytest.mark.slow
def test_a_disk_with_room_for_a_folder_but_not_for_a_socket(apart: Lab) -> None:
    error = refusal(apart.record(directory="/tmp/nearly-full"))
    assert failure(error) == "not_ready" and "its socket cannot be made" in error.message


def test_a_server_that_is_busy_is_asked_again(lab: Lab) -> None:
    """It takes one connection at a time that has not logged in yet, and that one is ours until we are turned away."""
    host = lab.hosts["beta"]
    with lab.server("beta", MaxStartups="1:100:1") as there:
        waiting = socket.create_connection((host.address, int(there[1].partition("=")[2])))
        waiting.recv(4)
        said: list[str] = []

        def listen(worker: str, line: str) -> None:
            said.append(line)
            if "trying again" in line:
                waiting.close()

        with waiting, pytest.raises(PhalanxError) as caught:
            with_worker(lab.record("beta", *there, python="/bin/true"), look, log=listen)
    assert any("trying again" in line for line in said)
    assert failure(caught.value) == "not_phalanx"


def test_a_server_without_sessions(lab: Lab) -> None:
    with lab.server("beta", MaxSessions="0") as there:
        error = refusal(lab.record("beta", *there))
    assert isinstance(error, Unavailable | WorkerLost)
