"""A coordinator service's socket on another machine, brought here by one ssh process; it ends with its standard input.

The system's ssh with the person's own configuration and agent: it never asks for a password, adds no listener but a Unix
socket in a folder of this user alone, and leaves nothing when the client is gone.
"""

import atexit
import contextlib
import json
import shlex
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from phalanx_proto.errors import InvalidRequest, PhalanxError, Unavailable
from phalanx_proto.ssh_options import FAR_LONGEST, FORWARD, NO_FORWARD, UNATTENDED, conflicts, fits_a_socket, option_words

STARTING = 30.0
"""Seconds for ssh to answer."""
ENDING = 3.0
NEWS = 1.0
"""Seconds within which the words of ssh follow the failure of what it carries."""
LAST_LINES = 5
WHERE = "serve --where --json"
ENROLLED = ".local/share/phalanx/venv/bin/phalanx"
"""Where ``phalanx enroll`` puts the command, unless told otherwise; in the home over there."""


def where_line(phalanx: str | None) -> str:
    """What asks over there for the service's socket, in any login shell: by the command given, else by any that is found."""
    if phalanx is not None:
        return f"{shlex.quote(phalanx)} {WHERE}"
    look = f'command -v phalanx >/dev/null 2>&1 && exec phalanx {WHERE}; exec "$HOME/{ENROLLED}" {WHERE}'
    return f"exec sh -c {shlex.quote(look)}"


def open_tunnel(address: str, phalanx: str | None, ssh_options: Sequence[str]) -> "Tunnel":
    """A tunnel to the service of ``ssh://host[/path/of/socket]``; raises ``InvalidRequest``, ``Unavailable``."""
    host, far = read_address(address)
    if found := conflicts(ssh_options):
        raise InvalidRequest(
            f"ssh_options must not have {', '.join(found)}, for with it ssh carries no connection; take it out"
        )
    beginning = ["ssh", *ssh_options, "-T", *option_words(UNATTENDED)]
    if not far:
        far = _ask_where([*beginning, *option_words(NO_FORWARD), "--", host, where_line(phalanx)], phalanx or "phalanx")
    return Tunnel(beginning, host, far)


def by_hand(command: Sequence[str]) -> str:
    """What a person types to see the same fault as a command of ours, and may answer. Private."""
    given, host = command[1 : command.index("-T")], command[command.index("--") + 1]
    return f"try the same by hand: {shlex.join(['ssh', *given, host, 'true'])}"


def read_address(address: str) -> tuple[str, str]:
    """(what ssh is given as destination, the socket's path there or an empty text); raises ``InvalidRequest``."""
    parts = urlsplit(address)
    host = parts.netloc
    if not host or host.startswith("-") or any(c.isspace() for c in host) or parts.query or parts.fragment:
        raise InvalidRequest(
            f"{address!r:.80} names no machine: write ssh://host, ssh://user@host or ssh://host/path/of/socket"
        )
    name, colon, port = host.rpartition(":")
    if colon and port.isdigit() and "[" not in host:
        raise InvalidRequest(f'write the port in your ssh configuration, or as ssh_options=("-p", "{port}"), and ssh://{name}')
    far = "" if parts.path in ("", "/") else parts.path
    if far and not fits_a_socket(far, FAR_LONGEST):
        raise InvalidRequest(
            f"a socket's path must be absolute, at most {FAR_LONGEST} bytes, and of letters, digits and /._+,=@- only"
        )
    return host, far


def _ask_where(command: Sequence[str], phalanx: str) -> str:
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=STARTING, check=False
        )
    except FileNotFoundError:
        raise Unavailable("there is no ssh on this machine; install an OpenSSH client") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"ssh did not answer within {STARTING:.0f} s", private=by_hand(command)) from None
    for line in reversed(ran.stdout.splitlines()):  # a login may print something before
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(json.loads(line)["socket"])
    raise failure(ran.returncode, ran.stderr.splitlines(), f"{phalanx} {WHERE}", by_hand(command))


def failure(status: int | None, lines: Sequence[str], command: str, step: str) -> PhalanxError:
    """Why ssh, or ``command`` that it ran there, failed, with what to do next; ``step`` is private."""
    told = "".join(f"\n    {line[:300]}" for line in list(lines)[-LAST_LINES:])
    private = f"ssh said:{told}" if told else "ssh said nothing"
    if status == 127:
        return Unavailable(
            f"{command!r} is not found on the other machine: name the absolute path of phalanx there, as in "
            'connect(address, phalanx="/home/me/venv/bin/phalanx")',
            private=private,
        )
    return Unavailable(f"the ssh tunnel ended with exit status {status}", private=f"{step}\n{private}")


class Tunnel:
    """One ssh process that carries the forward, and a command that only waits for the end of its input."""

    def __init__(self, beginning: Sequence[str], host: str, far: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="phalanx-")
        self.socket = Path(self._folder.name) / "s"
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        command = [*beginning, *option_words(FORWARD), "-L", f"{self.socket}:{far}", "--", host, "exec cat"]
        self._by_hand = by_hand(command)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._folder.cleanup()
            raise Unavailable(f"ssh cannot be started: {error.strerror}; install an OpenSSH client") from None
        assert self._process.stderr is not None
        self._listener = threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True)
        self._listener.start()
        atexit.register(self.close)
        self._wait()

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.append(line.rstrip())

    def _wait(self) -> None:
        """Until the socket is there; whether a service answers behind it, the first call tells."""
        deadline = time.monotonic() + STARTING
        while not self.socket.exists():
            lost = self._fault()
            if lost is None and time.monotonic() > deadline:
                lost = Unavailable(f"ssh made no forward within {STARTING:.0f} s", private=self._by_hand)
            if lost is not None:
                self.close()
                raise lost
            time.sleep(0.02)

    @property
    def ended(self) -> bool:
        """Whether ssh is gone, so that nothing can come through any more."""
        return self._process.poll() is not None

    def why_lost(self) -> PhalanxError | None:
        """Why the tunnel ended or refused its forward, once a call through it has failed; None if ssh finds nothing wrong."""
        deadline = time.monotonic() + NEWS
        while (found := self._fault()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return found

    def _fault(self) -> PhalanxError | None:
        status = self._process.poll()
        if status is not None:
            self._listener.join(ENDING)
            return failure(status, self._lines, "cat", self._by_hand)
        refused = [line for line in list(self._lines) if "open failed" in line or "forwarding" in line]
        if refused:
            return Unavailable(
                "no coordinator service answers on the other machine, or its ssh server forwards no Unix sockets; start one "
                "there with: phalanx serve",
                private=f"ssh said:\n    {refused[-1][:300]}",
            )
        return None

    def close(self) -> None:
        """End ssh and what it runs there; a second time is no fault."""
        atexit.unregister(self.close)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(ENDING)
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._folder.cleanup()
