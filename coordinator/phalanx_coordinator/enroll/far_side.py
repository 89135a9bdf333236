"""The far side of ``phalanx enroll``: its source is sent over ssh and runs in a bare Python 3.11 there. Standard library alone.

Standard input: one JSON line, the request; then the bytes of its files, one after another; it stays open until the answer.
If it closes before, all of this is ended. Standard output: ``{"step": …}`` lines, then one ``{"answer": …}`` line.

Everything lies in one directory of the user's: ``enrolled.json`` marks it as made here, ``venv`` is the environment,
``incoming`` what was sent and goes again. A directory without that mark is neither filled nor removed.
"""

import configparser
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

MARK = "enrolled.json"
TAIL = 40
"""Lines of an installer's output that are told when it fails."""
TOOLS = ("~/.local/bin", "~/.cargo/bin", "/usr/local/bin", "/opt/homebrew/bin", "~/bin")


class Refused(Exception):
    """What cannot be done; ``kind`` says which case, ``output`` what was printed."""

    def __init__(self, kind: str, text: str, output: str = "") -> None:
        super().__init__(text)
        self.kind, self.text, self.output = kind, text, output


def say(**fields: Any) -> None:
    """One line to the near side."""
    print(json.dumps(fields), flush=True)


def place(request: dict[str, Any]) -> Path:
    """The directory that the request names."""
    return Path(request["directory"]).expanduser().absolute()


def mark_of(directory: Path) -> dict[str, Any] | None:
    """What enroll noted there; None where it never was."""
    try:
        found = json.loads((directory / MARK).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("made_by") == "phalanx enroll" else None


def examine(request: dict[str, Any], data: BinaryIO) -> dict[str, Any]:
    """What this machine has; changes nothing."""
    directory = place(request)
    above = next(path for path in (directory, *directory.parents) if path.exists())
    taken = directory.exists() and (not directory.is_dir() or any(directory.iterdir()))
    return {
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "system": sys.platform,
        "machine": platform.machine(),
        "libc": list(platform.libc_ver()),
        "macos": platform.mac_ver()[0],
        "directory": str(directory),
        "mark": mark_of(directory),
        "taken": taken,
        "writable": os.access(above, os.W_OK),
        "free": shutil.disk_usage(above).free,
        "uv": find_uv(),
        "venv": find_spec("venv") is not None and find_spec("ensurepip") is not None,
    }


def find_uv() -> str | None:
    """uv, also where a login shell alone would find it."""
    places = os.pathsep.join([os.environ.get("PATH", ""), *(os.path.expanduser(tool) for tool in TOOLS)])
    return shutil.which("uv", path=places)


def install(request: dict[str, Any], data: BinaryIO) -> dict[str, Any]:
    """Make or renew the environment; answers its Python and what the machine has."""
    directory = place(request)
    if directory.exists() and mark_of(directory) is None and any(directory.iterdir()):
        raise Refused("not_ours", f"{directory} is there already and was not made by phalanx enroll")
    refuse_if_in_use(directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    mark = directory / MARK
    if mark_of(directory) is None:
        mark.write_text(json.dumps({"made_by": "phalanx enroll", "complete": False}), "utf-8")
    with mark.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused("busy", f"another phalanx enroll is at work in {directory}") from None
        incoming = directory / "incoming"
        try:
            receive(request["files"], data, incoming)
            if request["files"]:
                watch(data)
            python = fill(request, directory, incoming)
            found = inventory(python)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        mark.write_text(json.dumps({"made_by": "phalanx enroll", "complete": True, "version": request["version"]}), "utf-8")
    return {"python": str(python), "inventory": found}


def refuse_if_in_use(directory: Path) -> None:
    """A worker that runs from the environment would find it changed under its feet."""
    listed = subprocess.run(["ps", "-axwwo", "pid=,args="], capture_output=True, text=True, errors="replace", check=False)
    programs = f"{directory / 'venv' / 'bin'}/"
    users = [line.split()[0] for line in listed.stdout.splitlines() if programs in " ".join(line.split()[1:2])]
    if users:
        raise Refused("in_use", f"a worker runs from {directory}: process {', '.join(users)}")


def receive(files: list[dict[str, Any]], data: BinaryIO, incoming: Path) -> None:
    """Write the bytes of the files, which follow one another."""
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir(mode=0o700)
    say(step=f"receiving {len(files)} wheel{'s' if len(files) != 1 else ''}")
    for file in files:
        left = file["size"]
        with (incoming / Path(file["name"]).name).open("wb") as target:
            while left:
                piece = data.read(min(left, 1 << 20))
                if not piece:
                    raise Refused("cut", "the connection ended while files were sent")
                target.write(piece)
                left -= len(piece)


def fill(request: dict[str, Any], directory: Path, incoming: Path) -> Path:
    """The environment with what was asked for in it; returns its Python."""
    environment = directory / "venv"
    python = environment / "bin" / "python"
    uv = find_uv()
    wheel = incoming / Path(request["wheel"]).name
    if not usable(python) or not (uv or python.with_name("pip").exists()):
        say(step=f"making a virtual environment with {'uv' if uv else 'venv'}")
        make = (
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable] if uv else [sys.executable, "-m", "venv", "--clear"]
        )
        run([*make, str(environment)], "environment")
    install_with = [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
    source = ["--no-index", "--find-links", str(incoming)] if request["offline"] else []
    say(step=f"installing {', '.join(request['requirements'])} and what they need with {'uv' if uv else 'pip'}")
    run([*install_with, *source, f"{wheel}[worker]", *request["requirements"]], "install")
    # The version may be what it was and the sources others.
    again = ["--reinstall"] if uv else ["--force-reinstall"]
    run([*install_with, *source, "--no-deps", *again, str(wheel)], "install")
    return python


def usable(python: Path) -> bool:
    """Whether the environment is there and has the version of this Python."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        found = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.stdout.split() == [str(number) for number in sys.version_info[:2]]


def run(command: list[str], kind: str) -> None:
    """Run an installer; its last lines are in the refusal."""
    environment = {**os.environ, **own_index(os.environ), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    environment.pop("PYTHONPATH", None)
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env={**environment, "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never"}, check=False,
    )  # fmt: skip
    if ended.returncode:
        output = "\n".join(ended.stdout.splitlines()[-TAIL:])
        raise Refused(kind, f"{Path(command[0]).name} ended with exit status {ended.returncode}", output)


def own_index(environment: Any) -> dict[str, str]:
    """The package index that pip uses on this machine, in uv's words, which does not read pip's configuration."""
    if any(name in environment for name in ("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_CONFIG_FILE")):
        return {}
    found = {"index-url": environment.get("PIP_INDEX_URL"), "extra-index-url": environment.get("PIP_EXTRA_INDEX_URL")}
    for file in ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf", environment.get("PIP_CONFIG_FILE", "")):
        parser = configparser.RawConfigParser()
        try:
            parser.read(os.path.expanduser(file), "utf-8")
        except (configparser.Error, OSError):
            continue
        for section in ("global", "install"):
            for key in found:
                if parser.has_option(section, key) and f"PIP_{key.upper().replace('-', '_')}" not in environment:
                    found[key] = parser.get(section, key)
    names = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX"}
    return {names[key]: " ".join(value.split()) for key, value in found.items() if value}


def inventory(python: Path) -> dict[str, Any] | None:
    """What the new installation says of the machine."""
    say(step="asking the new installation what the machine has")
    command = [str(python), "-P", "-m", "phalanx", "inventory", "--json"]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    try:
        found = json.loads(ended.stdout)
    except ValueError:
        raise Refused("install", "the new installation does not run", (ended.stdout + ended.stderr)[-4000:]) from None
    return found if isinstance(found, dict) else None


def remove(request: dict[str, Any], data: BinaryIO) -> dict[str, Any]:
    """Remove what enroll made in a directory, and the directory itself if nothing else lies in it."""
    directory = place(request)
    if not directory.exists():
        return {"removed": False, "left": []}
    if mark_of(directory) is None:
        raise Refused("not_ours", f"{directory} was not made by phalanx enroll, so it is left as it is")
    refuse_if_in_use(directory)
    for name in ("venv", "incoming"):
        if (directory / name).exists():
            shutil.rmtree(directory / name)
    (directory / MARK).unlink()
    left = sorted(entry.name for entry in directory.iterdir())
    if not left:
        directory.rmdir()
    return {"removed": True, "left": left}


OPERATIONS = {"examine": examine, "install": install, "remove": remove}


def watch(data: BinaryIO) -> None:
    """Nothing more is to come: when the near side goes, this process ends, and the installer that it may have started."""

    def end_when_closed() -> None:
        if not data.read(1):
            os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=end_when_closed, daemon=True).start()


def main() -> None:
    """Carry out one request."""
    data = sys.stdin.buffer
    request = json.loads(data.readline())
    operation = OPERATIONS[request["operation"]]
    if not request.get("files"):
        watch(data)
    try:
        say(answer=operation(request, data))
    except Refused as refused:
        say(answer=None, kind=refused.kind, text=refused.text, output=refused.output)
    except OSError as error:
        kind = "disk_full" if error.errno in (28, 122) else "system"
        say(answer=None, kind=kind, text=str(error), output="")
    sys.stdout.flush()
    os._exit(0)


if __name__ in ("__main__", "far_side"):
    main()
