"""Addresses of services on other machines, and what is said when ssh fails; with an ssh that is only a script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from phalanx import tunnel
from phalanx_coordinator.enroll import plan as enroll_plan
from phalanx_proto.errors import InvalidRequest, Unavailable


@pytest.mark.parametrize(
    ("address", "host", "socket"),
    [
        ("ssh://atlas", "atlas", ""),
        ("ssh://atlas/", "atlas", ""),
        ("ssh://me@atlas/run/user/7/phalanx/coordinator.sock", "me@atlas", "/run/user/7/phalanx/coordinator.sock"),
    ],
)
def test_an_address_names_a_machine_and_may_name_the_socket(address: str, host: str, socket: str) -> None:
    assert tunnel.read_address(address) == (host, socket)


@pytest.mark.parametrize("address", ["ssh://", "ssh:///run/socket", "ssh://-oProxyCommand=x", "ssh://a b", "ssh://a?x=1"])
def test_what_names_no_machine_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="names no machine: write ssh://host"):
        tunnel.read_address(address)


@pytest.mark.parametrize("path", ["/run/%h", "/a b", "/a:b", "/$HOME/s", "/" + "x" * 103])
def test_a_path_that_ssh_would_read_otherwise_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match="a socket's path must be absolute"):
        tunnel.read_address(f"ssh://atlas{path}")


@pytest.mark.parametrize("address", ["foo://x", "http://atlas:80", "SSH://atlas"])
def test_an_address_of_another_kind_is_refused_with_those_that_are_known(address: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{address}' is no address of a service: write ssh://host, or the path of a"):
        phalanx.connect(address)


def test_a_port_belongs_to_the_configuration() -> None:
    with pytest.raises(InvalidRequest, match=r'ssh_options=\("-p", "2222"\), and ssh://atlas'):
        tunnel.read_address("ssh://atlas:2222")


@pytest.mark.parametrize("options", [("-N",), ("-o", "RemoteCommand=sh"), ("-fT",)])
def test_options_with_which_ssh_carries_nothing_are_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match=r"ssh_options must not have .+; take it out"):
        phalanx.connect("ssh://atlas", ssh_options=options)


@pytest.mark.parametrize("address", [None, "/run/user/7/phalanx.sock", Path("/run/user/7/phalanx.sock")])
def test_what_is_for_another_machine_is_refused_on_this_one(address: str | Path | None) -> None:
    for given in ({"phalanx": "/opt/bin/phalanx"}, {"ssh_options": ("-p", "22")}):
        with pytest.raises(InvalidRequest, match="are for another machine"):
            phalanx.connect(address, **given)


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ssh that does what a test writes into it."""
    script = tmp_path / "bin" / "ssh"
    script.parent.mkdir()
    script.touch(mode=0o700)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return script


def test_a_command_that_is_not_there_is_named(ssh: Path) -> None:
    ssh.write_text("#!/bin/sh\necho 'sh: phalanx: not found' >&2\nexit 127\n")
    with pytest.raises(
        Unavailable, match="'phalanx serve --where --json' is not found on the other machine: name the absolute path"
    ) as caught:
        phalanx.connect("ssh://atlas")
    assert "not found" in caught.value.private
    assert "atlas" not in caught.value.message


def test_the_command_that_enroll_made_is_found_outside_of_the_path(tmp_path: Path) -> None:
    command = tmp_path / tunnel.ENROLLED
    assert "~/" + str(Path(tunnel.ENROLLED).parents[2]) == enroll_plan.DIRECTORY
    command.parent.mkdir(parents=True)
    command.touch(mode=0o700)
    command.write_text('#!/bin/sh\necho enrolled "$@"\n')
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}

    def found() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(tunnel.where_line(None), shell=True, env=environment, capture_output=True, text=True, check=False)

    assert found().stdout == "enrolled serve --where --json\n"
    command.unlink()
    assert found().returncode == 127
    assert tunnel.where_line("/opt/p/bin/phalanx") == "/opt/p/bin/phalanx serve --where --json"


def test_what_a_login_says_is_passed_over_and_a_failing_forward_is_told(ssh: Path) -> None:
    ssh.write_text(
        '#!/bin/sh\ncase "$*" in *where*) echo Welcome; echo \'{"socket": "/far/socket"}\';; '
        "*-L*) echo 'ssh: it cannot be' >&2; exit 255;; esac\n"
    )
    with pytest.raises(Unavailable, match="the ssh tunnel ended with exit status 255") as caught:
        phalanx.connect("ssh://ada@atlas", ssh_options=("-F", "my config"))
    assert caught.value.private == "try the same by hand: ssh -F 'my config' ada@atlas true\nssh said:\n    ssh: it cannot be"
    assert "atlas" not in caught.value.message


def test_the_options_of_an_unattended_session_come_after_the_given_ones(ssh: Path, tmp_path: Path) -> None:
    ssh.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexit 255\n')
    with pytest.raises(Unavailable):
        phalanx.connect("ssh://me@atlas/far", ssh_options=("-F", "none"))
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    words = asked.split()
    assert words[:3] == ["-F", "none", "-T"]
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "ExitOnForwardFailure=yes", "ControlMaster=no"} <= set(words)
    assert words[-4:] == ["--", "me@atlas", "exec", "cat"]


def test_without_ssh_its_absence_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for address in ("ssh://atlas", "ssh://atlas/far"):
        with pytest.raises(Unavailable, match="OpenSSH client"):
            phalanx.connect(address)


LATE = """
import socket, sys, threading, time
near = sys.argv[sys.argv.index("-L") + 1].partition(":")[0]
server = socket.socket(socket.AF_UNIX)
server.bind(near)
server.listen()

def refuse():
    while True:
        server.accept()[0].close()
        time.sleep(0.3)
        print("channel 2: open failed: connect failed: open failed", file=sys.stderr, flush=True)

threading.Thread(target=refuse, daemon=True).start()
sys.stdin.read()
"""


def test_the_reason_of_ssh_is_told_though_it_comes_after_the_failure(ssh: Path, tmp_path: Path) -> None:
    program = tmp_path / "late.py"
    program.write_text(LATE)
    ssh.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    with pytest.raises(Unavailable, match="start one there with: phalanx serve"):
        phalanx.connect("ssh://atlas/far")
