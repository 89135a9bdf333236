"""Words of OpenSSH, as they were seen, and what they are taken for."""

import dataclasses
from pathlib import Path

import pytest

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.ssh.attempt import Attempt, FailureKind
from phalanx_coordinator.ssh.config import Destination
from phalanx_coordinator.ssh.failures import diagnose

RECORD = WorkerRecord(
    name="atlas", transport="ssh", host="peer", python="/opt/phalanx/bin/python", ssh_options=("-F", "/home/ada/lab.conf")
)
WHERE = Destination(hostname="192.0.2.7", port=2222, user="ada", known_hosts="/home/ada/.ssh/known_hosts")
SECRETS = ("peer", "192.0.2.7", "2222", "ada", "/opt", "lab.conf", "known_hosts")

CHANGED = """@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Someone could be eavesdropping on you right now (man-in-the-middle attack)!
It is also possible that a host key has just been changed.
The fingerprint for the ED25519 key sent by the remote host is
SHA256:T0cqhjTZ9IK2N2GkY9mXlyW1pvNp4X2Jmb5r7pS0yXE.
Please contact your system administrator.
Add correct host key in /home/ada/.ssh/known_hosts to get rid of this message.
Offending ED25519 key in /home/ada/.ssh/known_hosts:7
  remove with:
  ssh-keygen -f "/home/ada/.ssh/known_hosts" -R "[192.0.2.7]:2222"
Host key for [192.0.2.7]:2222 has changed and you have requested strict checking.
Host key verification failed."""
UNKNOWN = """No ED25519 host key is known for [192.0.2.7]:2222 and you have requested strict checking.
Host key verification failed."""
BEHIND = """kex_exchange_identification: Connection closed by remote host
Connection closed by UNKNOWN port 65535"""

Case = tuple[str, int | None, str, FailureKind]
STARTING: list[Case] = [
    ("changed", 255, CHANGED, "changed_key"),
    ("unknown", 255, UNKNOWN, "unknown_key"),
    ("revoked or else", 255, "Host key verification failed.", "unknown_key"),
    ("key", 255, "ada@192.0.2.7: Permission denied (publickey).", "refused_key"),
    ("keys", 255, "ada@192.0.2.7: Permission denied (publickey,gssapi-keyex,gssapi-with-mic,password).", "refused_key"),
    ("many keys", 255, "Received disconnect from 192.0.2.7 port 2222:2: Too many authentication failures", "refused_key"),
    ("name", 255, "ssh: Could not resolve hostname peer: Name or service not known", "no_host"),
    ("name on macOS", 255, "ssh: Could not resolve hostname peer: nodename nor servname provided, or not known", "no_host"),
    ("name, later", 255, "ssh: Could not resolve hostname peer: Temporary failure in name resolution", "no_host"),
    ("port", 255, "ssh: connect to host 192.0.2.7 port 2222: Connection refused", "connection_refused"),
    ("silence", 255, "ssh: connect to host 192.0.2.7 port 2222: Connection timed out", "timed_out"),
    ("silence on macOS", 255, "ssh: connect to host 192.0.2.7 port 2222: Operation timed out", "timed_out"),
    ("no banner", 255, "Connection timed out during banner exchange\nConnection to 192.0.2.7 port 2222 timed out", "timed_out"),
    ("route", 255, "ssh: connect to host 192.0.2.7 port 2222: No route to host", "no_route"),
    ("network", 255, "ssh: connect to host 192.0.2.7 port 2222: Network is unreachable", "no_route"),
    ("closed", 255, "kex_exchange_identification: read: Connection reset by peer", "closed_early"),
    ("behind a jump", 255, BEHIND, "closed_early"),
    ("option", 255, "command-line: line 0: Bad configuration option: foo", "bad_configuration"),
    ("file", 255, "Can't open user config file /home/ada/lab.conf: No such file or directory", "bad_configuration"),
    ("mode", 255, "Bad owner or permissions on /home/ada/.ssh/config", "bad_configuration"),
    ("bash", 127, "bash: line 1: /opt/phalanx/bin/python: No such file or directory", "no_executable"),
    ("dash", 127, "sh: 1: /opt/phalanx/bin/python: not found", "no_executable"),
    ("zsh", 127, "zsh:1: no such file or directory: /opt/phalanx/bin/python", "no_executable"),
    ("fish", 127, "fish: Unknown command: /opt/phalanx/bin/python", "no_executable"),
    ("csh", 1, "/opt/phalanx/bin/python: Command not found.", "no_executable"),
    ("folder", 126, "bash: line 1: /opt/phalanx/bin/python: Is a directory", "not_executable"),
    ("mode bits", 126, "bash: line 1: /opt/phalanx/bin/python: Permission denied", "not_executable"),
    ("old", 2, "Unknown option: -P\nusage: /opt/phalanx/bin/python [option] ... [-c cmd]", "old_python"),
    ("another program", 1, "/usr/bin/yes: invalid option -- 'P'\nTry '/usr/bin/yes --help'", "not_phalanx"),
    ("another program on macOS", 1, "head: illegal option -- P", "not_phalanx"),
    (
        "no phalanx", 1,
        "/opt/phalanx/bin/python: Error while finding module specification for 'phalanx_worker.supervisor' "
        "(ModuleNotFoundError: No module named 'phalanx_worker')", "not_phalanx",
    ),
    ("older phalanx", 1, "/opt/phalanx/bin/python: No module named phalanx_worker.supervisor", "not_phalanx"),
    ("no jax", 1, "ModuleNotFoundError: No module named 'jax'", "incomplete"),
    ("nologin", 1, "This account is currently not available.", "no_login"),
    ("true", 0, "", "not_phalanx"),
    ("nothing", 255, "", "closed_early"),
    ("killed", 137, "", "ended"),
    ("status", 3, "", "ended"),
    ("ssh killed", -9, "", "tunnel_broken"),
]  # fmt: skip
RUNNING: list[Case] = [
    ("silence", 255, "Timeout, server 192.0.2.7 not responding.", "tunnel_stalled"),
    ("sshd killed", 255, "Connection to 192.0.2.7 closed by remote host.", "tunnel_broken"),
    ("pipe", 255, "client_loop: send disconnect: Broken pipe", "tunnel_broken"),
    ("reset", 255, "Read from remote host 192.0.2.7: Connection reset by peer", "tunnel_broken"),
    ("corrupt", 255, "ssh_dispatch_run_fatal: Connection to 192.0.2.7 port 2222: message authentication code incorrect",
     "tunnel_broken"),
    ("ssh killed", -9, "", "tunnel_broken"),
    ("no words", 255, "", "tunnel_broken"),
    ("worker killed", 137, "", "ended"),
    ("worker's own words", 1, "Connection reset by peer", "ended"),
    ("lease", 71, "phalanx worker: the lease of 60 s ran out", "ended"),
]  # fmt: skip


def attempt(status: int | None, words: str, **changed: object) -> Attempt:
    made = Attempt(record=RECORD, status=status, lines=words.splitlines(), destination=WHERE)
    return dataclasses.replace(made, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(("status", "words", "kind"), [case[1:] for case in STARTING], ids=[case[0] for case in STARTING])
def test_a_worker_that_cannot_join(status: int | None, words: str, kind: FailureKind) -> None:
    failure = diagnose(attempt(status, words))
    assert failure.kind == kind
    assert not any(secret in failure.what for secret in SECRETS)
    assert failure.step or kind in ("ended", "tunnel_broken")
    error = failure.error("atlas", "private")
    assert error.message == f"worker atlas {failure.what}"
    assert error.details == {"worker": "atlas", "failure": kind}


@pytest.mark.parametrize(("status", "words", "kind"), [case[1:] for case in RUNNING], ids=[case[0] for case in RUNNING])
def test_a_worker_that_is_lost(status: int | None, words: str, kind: FailureKind) -> None:
    failure = diagnose(attempt(status, words, ready=True))
    assert (failure.kind, failure.lost) == (kind, True)
    assert not any(secret in failure.what for secret in SECRETS)


def step(words: str, status: int = 255, **changed: object) -> str:
    return diagnose(attempt(status, words, **changed)).step


def test_an_unknown_key_is_fetched_and_compared() -> None:
    scan = "ssh-keyscan -p 2222 192.0.2.7"
    assert f"{scan} | ssh-keygen -lf -\n    {scan} >> /home/ada/.ssh/known_hosts" in step(UNKNOWN)


@pytest.mark.parametrize("changed", [{"behind": True}, {"key_alias": "farm"}, {"hostname": "192.0.2.8"}, {"known_hosts": ""}])
def test_an_unknown_key_that_no_scan_can_add_is_asked_for(changed: dict[str, object]) -> None:
    where = dataclasses.replace(WHERE, **changed)  # type: ignore[arg-type]
    assert step(UNKNOWN, destination=where).endswith("ssh -F /home/ada/lab.conf -o StrictHostKeyChecking=ask peer true")


def test_a_changed_key_is_loud_and_never_simply_replaced() -> None:
    failure = diagnose(attempt(255, CHANGED))
    assert "THE HOST KEY OF ITS MACHINE HAS CHANGED" in failure.what
    assert "ask whoever runs the machine" in failure.step
    assert "ssh-keygen -R '[192.0.2.7]:2222' -f /home/ada/.ssh/known_hosts" in failure.step
    assert ">>" not in failure.step


def test_macos_keeps_programs_off_the_local_network() -> None:
    words = "ssh: connect to host 192.0.2.7 port 22: No route to host"
    assert "Privacy & Security, Local Network" in step(words, platform="darwin")
    assert "macOS" not in step(words)


def test_what_is_missing_comes_with_the_command_that_installs_it() -> None:
    text = step("bash: line 1: /opt/phalanx/bin/python: No such file or directory", 127)
    assert "python = '/opt/phalanx/bin/python' is not on that machine" in text
    assert text.endswith("\n    phalanx enroll peer --name atlas --ssh-option=-F --ssh-option=/home/ada/lab.conf")
    assert "pip" not in text  # no index has a project of ours of that name
    record = dataclasses.replace(RECORD, file=Path("group.toml"))
    assert "--name atlas --into group.toml --ssh-option=-F" in step("No module named phalanx_worker", 1, record=record)
    assert "lacks jax" in diagnose(attempt(1, "ModuleNotFoundError: No module named 'jax'")).what


def test_some_accounts_say_it_on_standard_output() -> None:
    assert diagnose(attempt(1, "", said=["This account is currently not available."])).kind == "no_login"


def test_one_that_is_late() -> None:
    assert diagnose(attempt(None, "", late=5.0)).what == "was not ready within 5 s"
    assert "said something else" in diagnose(attempt(None, "", late=5.0, said=["y"])).what


@pytest.mark.parametrize("ready", [False, True])
def test_an_ssh_that_was_killed_here_is_told_as_such(ready: bool) -> None:
    failure = diagnose(attempt(-9, "", ready=ready))
    assert failure.what == "was lost: its ssh process on this machine was killed (SIGKILL)"
    assert failure.step.startswith("start again; if it is killed again, look on this machine")


def test_a_signal_is_named() -> None:
    assert diagnose(attempt(137, "", ready=True)).what.startswith("was ended by SIGKILL")
    assert diagnose(attempt(139, "")).what == "was ended by SIGSEGV"
    assert diagnose(attempt(200, "")).what == "ended with exit status 200"
