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
