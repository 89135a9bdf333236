"""A machine behind a stand-in for ssh: the same commands, run here with a home of their own and an installer that is a script.

The real thing, over a real sshd, is in ``tests/hosts``.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SSH = """#!/bin/sh
echo "$@" >> "$FAR_HOME/ssh.log"
near= ; query=
while [ $# -gt 0 ]; do
  case "$1" in
    -L) near=${2%%:*}; far=${2#*:}; shift 2 ;;
    -o|-F|-p|-i) shift 2 ;;
    -G) query=1; shift ;;
    --) shift; break ;;
    *) shift ;;
  esac
done
if [ -n "$query" ]; then echo "hostname $1"; exit 0; fi
if [ "$1" = nowhere ]; then
  echo "ssh: Could not resolve hostname nowhere: Name or service not known" >&2; exit 255
fi
if [ -n "$near" ]; then ln -s "$far" "$near"; fi
HOME="$FAR_HOME"; export HOME
PATH="$FAR_HOME/bin:/usr/bin:/bin"; export PATH
unset PYTHONPATH XDG_RUNTIME_DIR VIRTUAL_ENV
echo "Welcome to the far machine"
exec sh -c "$2"
"""
UV = """#!/bin/sh
echo "$@" >> "$HOME/uv.log"
case "$1" in
  venv)
    for place; do :; done
    mkdir -p "$place/bin"
    printf '#!/bin/sh\\nexec %s "$@"\\n' PYTHON > "$place/bin/python"
    chmod 755 "$place/bin/python" ;;
  pip)
    if [ -e "$HOME/fail" ]; then cat "$HOME/fail"; exit 1; fi ;;
  *) exit 1 ;;
esac
"""


@dataclass(frozen=True)
class FarMachine:
    """Its home."""

    home: Path

    @property
    def environment(self) -> Path:
        return self.home / ".local/share/phalanx"

    def fail(self, output: str) -> None:
        """Let the installer print this and fail."""
        (self.home / "fail").write_text(output + "\n")

    def mend(self) -> None:
        (self.home / "fail").unlink()

    def installed(self) -> list[str]:
        """What the installer was asked to do, call by call."""
        log = self.home / "uv.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if line.startswith(("venv", "pip"))]


def make_far_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FarMachine:
    """Put the stand-in before the real ssh, and a Python and an installer behind it."""
    near, home = folder / "near", folder / "home"
    (home / "bin").mkdir(parents=True)
    near.mkdir()
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for path, text in ((near / "ssh", SSH), (home / "bin" / "uv", UV.replace("PYTHON", sys.executable))):
        path.write_text(text)
        path.chmod(0o755)
    (home / "bin" / base.name).symlink_to(base if base.exists() else sys.executable)
    monkeypatch.setenv("PATH", f"{near}:{os.environ['PATH']}")
    monkeypatch.setenv("FAR_HOME", str(home))
    return FarMachine(home)
