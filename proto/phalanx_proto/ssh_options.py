"""Options of ssh for a session that nobody attends: it asks nothing, trusts no new host, and adds only what was asked for."""

from collections.abc import Sequence

CONNECT_TIMEOUT = 15
"""Seconds for the connection and the server's first words."""
ALIVE_INTERVAL, ALIVE_COUNT = 5, 3
"""ssh ends after three unanswered questions, five seconds apart."""
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


def option_words(options: Sequence[str]) -> list[str]:
    """The arguments that set these options; what was set before wins."""
    return [word for option in options for word in ("-o", option)]
