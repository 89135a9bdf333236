"""From the words of ssh, and of what ran over there, to the failure they stand for. Pure.

ssh has no codes for its failures, so its words are read; those of OpenSSH 7.6 to 10 agree.
"""

import dataclasses
import re
import signal
from collections.abc import Mapping, Sequence

from phalanx_coordinator.ssh import advice
from phalanx_coordinator.ssh.advice import Explain
from phalanx_coordinator.ssh.attempt import Attempt as Attempt
from phalanx_coordinator.ssh.attempt import Failure as Failure
from phalanx_proto.endings import describe_exit

SSH_FAILED = 255
"""The exit status of ssh for its own failures, and for a remote command that a signal ended."""


def diagnose(attempt: Attempt) -> Failure:
    """What explains how the attempt ended."""
    if attempt.late is not None:
        return _late(attempt)
    if attempt.record.transport != "ssh":
        return Failure(kind="ended", what=describe_exit(attempt.status), lost=True)
    failure = _told(attempt) or _by_status(attempt)
    return dataclasses.replace(failure, lost=failure.lost or attempt.ready)


def _late(attempt: Attempt) -> Failure:
    what = f"was not ready within {attempt.late:.0f} s"
    if attempt.said:
        what += ", but said something else; is it a Phalanx worker?"
    return Failure(kind="late", what=what, step=advice.by_hand(attempt), lost=True)


def _told(attempt: Attempt) -> Failure | None:
    """The first known words: ssh's own where ssh failed, else those of what ran over there."""
    by_ssh = attempt.status is None or attempt.status < 0 or attempt.status == SSH_FAILED
    for pattern, explain in _words(by_ssh, attempt.ready):
        for line in (*attempt.lines, *attempt.said):
            found = re.search(pattern, line)
            if found is not None:
                return explain(attempt, found)
    return None


def _words(by_ssh: bool, ready: bool) -> "Sequence[tuple[str, Explain]]":
    if ready:
        return _BROKEN if by_ssh else ()
    return _REFUSED if by_ssh else _NOT_STARTED


def _by_status(attempt: Attempt) -> Failure:
    status, ready = attempt.status, attempt.ready
    if status is not None and status > 128 and status - 128 in signal.valid_signals():  # how shells tell of a signal
        return Failure(kind="ended", what=describe_exit(128 - status), lost=True)
    if status == SSH_FAILED:
        return _ssh_failed(attempt)
    if status is not None and status < 0:
        return advice.ssh_killed(attempt, signal.Signals(-status).name)
    if not ready and status in _BY_SHELL:
        return _BY_SHELL[status](attempt, None)
    if not ready and status == 0:
        what = "ended with exit status 0 before it was ready; is it a Phalanx worker?"
        return Failure(kind="not_phalanx", what=what, step=advice.install(attempt), lost=True)
    return Failure(kind="ended", what=describe_exit(status), lost=True)


def _ssh_failed(attempt: Attempt) -> Failure:
    if attempt.ready:
        return Failure(kind="tunnel_broken", what="was lost: ssh ended without a reason, or what ran over there was killed")
    what = "cannot be reached: ssh gave no reason that is known"
    return Failure(kind="closed_early", what=what, step=advice.by_hand(attempt))


_BY_SHELL: Mapping[int | None, Explain] = {126: advice.not_executable, 127: advice.no_executable}

_BROKEN: Sequence[tuple[str, Explain]] = (
    (r"^Timeout, server .* not responding", advice.stalled),
    (r"^Connection to .* closed by remote host", advice.broken),
    (r"client_loop: send disconnect: ", advice.broken),
    (r"^Read from remote host .*: ", advice.broken),
    (r"^(?:ssh_dispatch_run_fatal: )?Connection to .* (?:Broken pipe|message authentication code incorrect)", advice.broken),
    (r"^Connection (?:reset|closed) by ", advice.broken),
    (r"^packet_write_wait: Connection to ", advice.broken),
)
_REFUSED: Sequence[tuple[str, Explain]] = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|^Host key for .* has changed", advice.changed_key),
    (r"^No (?:\S+ )?host key is known for ", advice.unknown_key),
    (r"^Host key verification failed", advice.unknown_key),
    (r"Permission denied \([a-z,-]+\)", advice.refused_key),
    (r"Too many authentication failures|No (?:supported|more) authentication methods", advice.refused_key),
    (r"^(?:ssh: )?Could not resolve hostname ", advice.no_host),
    (r"^ssh: connect to host .*: Connection refused", advice.connection_refused),
    (r"^ssh: connect to host .*: (?:Connection|Operation) timed out", advice.timed_out),
    (r"^Connection timed out during banner exchange|^Connection to .* timed out", advice.timed_out),
    (r"^ssh: connect to host .*: (?:No route to host|Network is (?:unreachable|down)|Host is down)", advice.no_route),
    (r"^(?:kex_exchange_identification|banner exchange|ssh_exchange_identification): ", advice.closed_early),
    (r"Bad configuration option|Bad owner or permissions on|Can't open user config file", advice.bad_configuration),
    (r"^(?:unknown option|usage: ssh)", advice.bad_configuration),
    (r"terminating, \d+ bad configuration options|^command-line: line \d+: |^Bad .* specification", advice.bad_configuration),
    *_BROKEN,
)
_NOT_STARTED: Sequence[tuple[str, Explain]] = (
    (r"This account is (?:currently )?not available", advice.no_login),
    (r"(?i)unknown option:? -P\b", advice.old_python),
    (r"(?i)\b(?:invalid|illegal|unrecognized) option:? (?:-- )?['\"`]?-?P\b", advice.no_python),
    (r"No module named '?phalanx_worker", advice.not_phalanx),
    (r"No module named '?([A-Za-z_][A-Za-z0-9_]*)", advice.incomplete),
    (r"(?:Command not found\.|Unknown command)", advice.no_executable),
)
