"""How a process ended, in words that say what to look for."""

import signal


def describe_exit(status: int | None) -> str:
    """An exit status as ``subprocess`` gives it; None stands for a process that is still there."""
    if status is None:
        return "is not answering"
    if status < 0:
        name = signal.Signals(-status).name
        hint = "; the kernel may have ended it for lack of memory" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"
    return f"ended with exit status {status}"
