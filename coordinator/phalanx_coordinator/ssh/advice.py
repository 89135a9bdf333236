"""What each failure of ssh is called, and what the person can do next, with the exact command. Pure.

Each function takes the attempt and the match of the words that gave the failure away. ``what`` is public; ``step`` is not.
"""

import re
import shlex
from collections.abc import Callable

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.ssh.attempt import Attempt, Failure
from phalanx_coordinator.ssh.command import enroll_step, trial
from phalanx_coordinator.ssh.ready_line import MOST_NOISE

Explain = Callable[[Attempt, "re.Match[str] | None"], Failure]


def changed_key(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A machine that is not the one it was."""
    name = _key_name(attempt, r"Host key for (\S+) has changed")
    offending = next((m[1] for line in attempt.lines if (m := re.search(r"Offending .*? ?key in (.+):\d+", line))), "")
    file = f" -f {shlex.quote(offending)}" if offending else ""
    return Failure(
        kind="changed_key",
        what="WAS NOT TRUSTED: THE HOST KEY OF ITS MACHINE HAS CHANGED. Somebody may be listening in, or the machine was "
        "installed anew. Nothing was sent to it",
        step="ask whoever runs the machine, by another way than this one, whether its key was changed. Only then forget the "
        f"old key and look at the new one:\n    ssh-keygen -R {shlex.quote(name)}{file}\n    {_ask(attempt)}",
    )


def unknown_key(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A machine never met before."""
    name = _key_name(attempt, r"No (?:\S+ )?host key is known for (\S+) and")
    return Failure(
        kind="unknown_key",
        what="was not trusted: ssh does not know the host key of its machine",
        step="compare its fingerprint with the one that whoever runs the machine tells you, then add it:\n    "
        + _scan(attempt, name),
    )


def _key_name(attempt: Attempt, pattern: str) -> str:
    names = (m[1] for line in attempt.lines if (m := re.search(pattern, line)))
    return next(names, attempt.destination.hostname if attempt.destination else attempt.record.host or "")


def _scan(attempt: Attempt, name: str) -> str:
    """How to add a key: by ssh-keyscan where the machine is reached directly and goes by its own name, else by ssh."""
    where = attempt.destination
    parts = re.fullmatch(r"\[(.+)\]:(\d+)", name)
    host, port = (parts[1], int(parts[2])) if parts else (name, 22)
    direct = where is not None and (host, port) == (where.hostname, where.port) and not (where.behind or where.key_alias)
    if where is None or not direct or not where.known_hosts:
        return _ask(attempt)
    scan = f"ssh-keyscan -p {port} {shlex.quote(host)}"
    file = shlex.quote(where.known_hosts)
    return f"{scan} | ssh-keygen -lf -\n    {scan} >> {file}"


def _ask(attempt: Attempt) -> str:
    return trial(attempt.record, "-o", "StrictHostKeyChecking=ask")


def by_hand(attempt: Attempt) -> str:
    """The same connection for the person to try; nothing where there is none."""
    if attempt.record.transport != "ssh":
        return ""
    return f"try it by hand:\n    {trial(attempt.record)}"


def refused_key(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A login that was refused."""
    return Failure(
        kind="refused_key",
        what="refused you: its machine accepts none of the keys that ssh has without asking",
        step="is the key loaded (ssh-add -l), and is its public half in authorized_keys over there? A key with a passphrase "
        f"must be in the agent. To see what ssh offers:\n    {trial(attempt.record, '-v')}",
    )


def no_host(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A name that nobody knows."""
    return Failure(
        kind="no_host",
        what="cannot be reached: the name of its machine is not known",
        step=f"is host = {attempt.record.host!r} an alias in your ssh configuration, or a name that your network knows? "
        f"{by_hand(attempt)}",
    )


def connection_refused(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A port where nothing listens."""
    return Failure(
        kind="connection_refused",
        what="cannot be reached: its machine is there, but nothing listens for ssh at that port",
        step=f"is sshd running over there, and is the port right? {by_hand(attempt)}",
    )


def timed_out(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A machine that is silent."""
    return Failure(
        kind="timed_out",
        what="cannot be reached: its machine did not answer in time",
        step=f"is it switched on, and is there a firewall or a VPN between? {by_hand(attempt)}",
    )


def no_route(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A network that is not there, or kept from us."""
    step = f"is this machine on that network (cable, Wi-Fi, VPN)? {by_hand(attempt)}"
    if attempt.platform == "darwin":
        step = (
            "macOS says so too when it keeps a program off the local network: in System Settings, Privacy & Security, Local "
            f"Network, allow the program that runs this (Terminal, an editor), and start it again. Else: {step}"
        )
    return Failure(kind="no_route", what="cannot be reached: there is no route to its machine", step=step)


def closed_early(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A server that closed before the login."""
    return Failure(
        kind="closed_early",
        what="cannot be reached: its machine closed the connection before ssh could log in",
        step="too many connections at once (MaxStartups), a ban after failed logins, or a machine between that cannot go on "
        f"may be the reason. {by_hand(attempt)}",
    )


def bad_configuration(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A configuration that ssh does not accept."""
    what = "cannot be reached: ssh does not accept its configuration or the ssh_options of its record"
    return Failure(kind="bad_configuration", what=what, step=by_hand(attempt))


def no_executable(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A Python that is not there."""
    return Failure(
        kind="no_executable",
        what="cannot start: the Python that its record names is not there",
        step=f"python = {attempt.record.python!r} is not on that machine. {install(attempt)}",
    )


def not_executable(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A file that cannot be executed."""
    return Failure(
        kind="not_executable",
        what="cannot start: what its record names as Python cannot be executed there",
        step=f"look at it:\n    {trial(attempt.record, far=shlex.quote(f'ls -l {attempt.record.python}'))}",
    )


def old_python(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A Python too old."""
    what = "cannot start: its Python is older than 3.11"
    return Failure(kind="old_python", what=what, step=install(attempt))


def no_python(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """Another program."""
    what = "cannot start: what its record names as Python is another program"
    return Failure(kind="not_phalanx", what=what, step=install(attempt))


def not_phalanx(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A Python without us."""
    what = "cannot start: there is no Phalanx of this version in the Python that its record names"
    return Failure(kind="not_phalanx", what=what, step=install(attempt))


def incomplete(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A Python without one of our packages."""
    what = f"cannot start: its Python lacks {found[1] if found else 'a package'}"
    return Failure(kind="incomplete", what=what, step=install(attempt))


def no_login(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """An account that may not run commands."""
    return Failure(
        kind="no_login",
        what="cannot start: the account on its machine may not run commands",
        step=f"it needs a login shell, and no ForceCommand that leads elsewhere. {by_hand(attempt)}",
    )


def too_much_noise(record: WorkerRecord) -> Failure:
    """A profile that prints without end, or a program that is no worker."""
    if record.transport != "ssh":
        what = f"said {MOST_NOISE >> 20} MiB of other things instead of its ready line; is it a Phalanx worker?"
        return Failure(kind="not_phalanx", what=what, lost=True)
    return Failure(
        kind="noisy_profile",
        what=f"cannot be heard: the shell profile on that machine prints too much ({MOST_NOISE >> 20} MiB before the worker's "
        "first words)",
        step="let the profile there (.bashrc, .zshenv and the like) print only where somebody sees it, as with\n"
        "    case $- in *i*) ;; *) return ;; esac\nat its top. To see the beginning of what it prints:\n"
        f"    {trial(record)} | head -c 2000",
    )


def install(attempt: Attempt) -> str:
    """How to install this version there."""
    return enroll_step(attempt.record)


def stalled(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A network gone silent."""
    what = "was lost: its machine stopped answering ssh; the network between is down, or it sleeps"
    return Failure(kind="tunnel_stalled", what=what)


def ssh_killed(attempt: Attempt, name: str) -> Failure:
    """An ssh that was ended on this machine."""
    return Failure(
        kind="tunnel_broken", what=f"was lost: its ssh process on this machine was killed ({name})", lost=True,
        step="start again; if it is killed again, look on this machine for who ends it: a session that is logged out, a limit, "
        "or the kernel for lack of memory",
    )  # fmt: skip


def broken(attempt: Attempt, found: re.Match[str] | None) -> Failure:
    """A connection that broke."""
    return Failure(kind="tunnel_broken", what="was lost: the ssh connection to its machine broke")
