"""Options of ssh for a session that nobody attends: it asks nothing, trusts no new host, and adds only what was asked for."""

import os
import re
import sys
from collections.abc import Sequence

CONNECT_TIMEOUT = 15
"""Seconds for the connection and the server's first words."""
ALIVE_INTERVAL, ALIVE_COUNT = 5, 3
"""ssh ends after three unanswered questions, five seconds apart."""
NEAR_LONGEST = 107 if sys.platform == "linux" else 103
FAR_LONGEST = 103
"""Bytes of a Unix socket's path here, and on a machine whose system is not known."""
UNATTENDED = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "UpdateHostKeys=no",
    f"ConnectTimeout={CONNECT_TIMEOUT}",
    "ConnectionAttempts=1",
    f"ServerAliveInterval={ALIVE_INTERVAL}",
    f"ServerAliveCountMax={ALIVE_COUNT}",
    "ControlMaster=no",
    "ControlPath=none",
    "ControlPersist=no",
    "RequestTTY=no",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "Tunnel=no",
    "LogLevel=INFO",
)
NO_FORWARD = ("ClearAllForwardings=yes",)
FORWARD = ("ExitOnForwardFailure=yes", "StreamLocalBindUnlink=yes", "StreamLocalBindMask=0177")
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9/._+,=@-]*")
"""Paths in which ssh expands nothing and splits nothing."""


def option_words(options: Sequence[str]) -> list[str]:
    """The arguments that set these options; what was set before wins."""
    return [word for option in options for word in ("-o", option)]


def fits_a_socket(path: str, longest: int = NEAR_LONGEST) -> bool:
    """Whether a socket can be bound at ``path`` and forwarded by ssh."""
    return len(os.fsencode(path)) <= longest and _PLAIN_PATH.fullmatch(path) is not None


_WITH_VALUE = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
_CONFLICTS = frozenset("fGNnOQsVW")
"""Letters that keep ssh from running what it is given with its standard streams: it goes to the background, lists something
and ends, reads nothing, or carries something else."""
_CONFLICTING = {
    "remotecommand": ("none",), "sessiontype": ("default",), "stdinnull": ("no", "false"),
    "forkafterauthentication": ("no", "false"),
}  # fmt: skip
"""The same as options by name, and the values that do no harm."""


def conflicts(words: Sequence[str]) -> list[str]:
    """Which arguments for ssh keep a worker from being run through it, by name: ``-N``, ``RemoteCommand``."""
    found: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            continue
        for place, letter in enumerate(word[1:], 2):
            found += [f"-{letter}"] if letter in _CONFLICTS else []
            if letter in _WITH_VALUE:
                value = word[place:] or (left.pop(0) if left else "")
                found += _conflicting(value) if letter == "o" else []
                break
    return list(dict.fromkeys(found))


def _conflicting(option: str) -> list[str]:
    name, value = (*re.split(r"\s*=\s*|\s+", option.strip(), maxsplit=1), "")[:2]
    harmless = _CONFLICTING.get(name.lower())
    return [] if harmless is None or value.strip('"').lower() in harmless else [name]
