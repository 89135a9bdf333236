"""The command lines of ssh, and what ``ssh -G`` says, without any ssh."""

import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.ssh.command import Forward, query_command, remote_line, ssh_command, trial
from phalanx_coordinator.ssh.config import Destination, parse
from phalanx_coordinator.ssh.transport import daemon_arguments, plan_launch, routes
from phalanx_proto.errors import InvalidRequest
from phalanx_proto.ssh_options import fits_a_socket

NEAR = Path("/run/user/1000/phalanx-abcdefgh")
NAME = "phalanx-" + "0" * 32
RECORD = WorkerRecord(
    name="atlas", transport="ssh", host="ada@peer", python="/opt/my python/bin/python", slots=3,
    ssh_options=("-F", "/home/ada/lab.conf", "-o", "StrictHostKeyChecking=no"),
)  # fmt: skip
SOCKET = WorkerRecord(name="a", transport="socket", slots=3)


def options(command: list[str]) -> dict[str, str]:
    """What each ``-o`` sets; as in ssh, the first one counts."""
    found: dict[str, str] = {}
    for flag, value in pairwise(command):
        if flag == "-o":
            name, _, setting = value.partition("=")
            found.setdefault(name, setting)
    return found


def test_the_options_of_the_record_come_first_and_win() -> None:
    command = ssh_command(RECORD, ["true"])
    assert command[:5] == ["ssh", *RECORD.ssh_options]
    assert options(command)["StrictHostKeyChecking"] == "no"
    assert options(ssh_command(WorkerRecord(name="a", transport="ssh", host="h", python="/p"), ["true"]))[
        "StrictHostKeyChecking"
    ] == "yes"  # fmt: skip


def test_nothing_asks_shares_or_forwards_what_was_not_asked_for() -> None:
    found = options(ssh_command(RECORD, ["true"], Forward(near=NEAR / "worker.sock", far="/tmp/x/worker.sock")))
    assert found | {"StrictHostKeyChecking": "yes"} == found | {
        "BatchMode": "yes", "StrictHostKeyChecking": "yes", "ExitOnForwardFailure": "yes", "StreamLocalBindUnlink": "yes",
        "StreamLocalBindMask": "0177", "ControlMaster": "no", "ControlPath": "none", "ForwardAgent": "no", "ForwardX11": "no",
        "RequestTTY": "no", "RemoteCommand": "none", "PermitLocalCommand": "no",
    }  # fmt: skip
    assert int(found["ConnectTimeout"]) and int(found["ServerAliveInterval"]) and int(found["ServerAliveCountMax"])
    assert "ClearAllForwardings" not in found
    assert options(ssh_command(RECORD, ["true"]))["ClearAllForwardings"] == "yes"


def test_a_destination_is_never_an_option() -> None:
    assert ssh_command(RECORD, ["true"])[-3:] == ["--", "ada@peer", "true"]
    assert query_command(RECORD)[-3:] == ["-G", "--", "ada@peer"]


@pytest.mark.parametrize("word", ["plain", "two words", "it's", '"', "$HOME", "`id`", "a;b", "*", "\\", "~", "", "ü", "!x"])
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_every_word_reaches_the_program_as_it_is(word: str, shell: str) -> None:
    line = remote_line([sys.executable, "-c", "import sys; sys.stdout.write(sys.argv[1])", word])
    done = subprocess.run([shell, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == word


@pytest.mark.parametrize(
    "path", ["/" + "a" * 107, "relative", "/with space", "/per%cent", "/dollar${HOME}", "/colon:", "/back\\slash", "/new\nline"]
)
def test_a_path_that_ssh_would_change_or_no_socket_can_have(path: str) -> None:
    assert not fits_a_socket(path)
    with pytest.raises(InvalidRequest, match="a socket's path must be"):
        Forward(near=NEAR, far=path)


def test_paths_up_to_the_limit_fit() -> None:
    assert fits_a_socket("/" + "a" * 106, 107) and not fits_a_socket("/" + "a" * 107, 107)
    with pytest.raises(InvalidRequest, match="at most 103 bytes"):
        Forward(near=NEAR, far="/" + "a" * 103)


def test_a_trial_can_be_pasted() -> None:
    assert trial(RECORD) == "ssh -F /home/ada/lab.conf -o StrictHostKeyChecking=no ada@peer true"
    spaced = WorkerRecord(name="a", transport="ssh", host="h", python="/p", ssh_options=("-F", "/my files/c"))
    assert shlex.split(trial(spaced, "-v")) == ["ssh", "-F", "/my files/c", "-v", "h", "true"]


def test_a_daemon_here() -> None:
    launch = plan_launch(SOCKET, "socket", NEAR, NAME, True)
    assert launch.command[:3] == (sys.executable, "-m", "phalanx_worker")
    assert launch.socket == NEAR / "worker.sock"
    arguments = ["--slots", "3", "--backend", "cpu", "--ordinal", "0", "--directory", str(NEAR), "--oversubscribe"]
    assert list(launch.command[3:]) == arguments == daemon_arguments(SOCKET, str(NEAR), True)
    assert "--oversubscribe" not in plan_launch(SOCKET, "socket", NEAR, NAME, False).command


def test_a_worker_behind_a_forward() -> None:
    launch = plan_launch(RECORD, "forward", NEAR, NAME, False)
    *_, host, line = launch.command
    assert host == "ada@peer"
    assert shlex.split(line)[:4] == ["/opt/my python/bin/python", "-P", "-m", "phalanx_worker.supervisor"]
    assert shlex.split(line)[-2:] == ["--directory", f"/tmp/{NAME}"]
    at = launch.command.index("-L")
    assert launch.command[at + 1] == f"{NEAR}/worker.sock:/tmp/{NAME}/worker.sock"


def test_a_worker_behind_a_relay() -> None:
    launch = plan_launch(RECORD, "relay", NEAR, NAME, False)
    assert launch.command[:6] == (sys.executable, "-P", "-m", "phalanx_coordinator.ssh.relay", f"{NEAR}/worker.sock", "ssh")
    assert "-L" not in launch.command
    far = shlex.split(launch.command[-1])
    assert far[2:6] == ["-m", "phalanx_worker.relay", f"/tmp/{NAME}/worker.sock", "phalanx_worker.supervisor"]


def test_the_far_directory_is_where_the_record_says() -> None:
    record = WorkerRecord(name="a", transport="ssh", host="h", python="/p", directory="/" + "d" * 49)
    launch = plan_launch(record, "forward", NEAR, NAME, False)
    assert launch.command[-1].endswith(f"--directory /{'d' * 49}/{NAME}")


CONFIG = """host peer
user ada
hostname 192.0.2.7
port 2222
proxyjump none
userknownhostsfile /home/ada/.ssh/known_hosts /home/ada/.ssh/known_hosts2
"""


def test_what_ssh_says_of_a_destination() -> None:
    assert parse(CONFIG) == Destination(
        hostname="192.0.2.7", port=2222, user="ada", known_hosts="/home/ada/.ssh/known_hosts"
    )  # fmt: skip
    assert parse("") is None
    behind = parse(CONFIG.replace("proxyjump none", "proxyjump gate\nhostkeyalias farm"))
    assert behind is not None and behind.behind and behind.key_alias == "farm"


def test_the_routes_of_a_record() -> None:
    assert routes(SOCKET, None) == ("socket",)
    assert routes(RECORD, None) == routes(RECORD, parse(CONFIG)) == ("forward", "relay")
    own = parse(CONFIG + "localforward 8888 [localhost]:8888\n")
    assert routes(RECORD, own) == ("relay",)
