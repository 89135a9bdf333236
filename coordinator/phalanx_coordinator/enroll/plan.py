"""What enrolling a machine takes: names, versions, platform tags, and the words that say it first. Pure."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx_proto.errors import InvalidRequest
from phalanx_proto.execution import Backend
from phalanx_proto.experiment import DType

DIRECTORY = "~/.local/share/phalanx"
"""Where the environment is made on the other machine, unless another place is named."""
OLDEST = (3, 11)
NEEDED = 1_500_000_000
"""Bytes that an environment with JAX takes while it is installed, with room."""
_OLDEST_GLIBC = 17
"""manylinux_2_17 is manylinux2014."""


@dataclass(frozen=True, kw_only=True)
class Enrolment:
    """What the person asks for. How the machine is reached is private."""

    host: str
    name: str | None = None
    slots: int | None = None
    """None: what the record has, or a conservative choice of what the machine has."""
    backend: Backend | None = None
    """None: what the record has, or cpu."""
    into: Path | None = None
    """None: the record is shown and not written."""
    python: str | None = None
    """The interpreter to make the environment from; None: one is looked for."""
    directory: str | None = None
    """Where the environment is made; None: where it is already, or ``DIRECTORY``."""
    ssh_options: tuple[str, ...] | None = None
    """None: what the record has, or none."""
    offline: bool = False
    dtype: DType | None = None
    """Precision of a cluster file that is new."""
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """One Python on the other machine."""

    version: tuple[int, int]
    path: str


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the far side says of itself, as far as it matters here."""

    python: tuple[int, int, int]
    executable: str
    system: str
    """``sys.platform``: linux or darwin."""
    machine: str
    libc: tuple[str, str]
    macos: str
    directory: str
    """Absolute."""
    enrolled: bool
    """Whether an earlier enrolment made the directory."""
    taken: bool
    """Whether something lies in it."""
    writable: bool
    free: int
    """Bytes."""
    uv: str | None
    venv: bool
    """Whether Python can make an environment with pip by itself."""


def read_machine(answer: Mapping[str, Any]) -> Machine:
    """The value of the far side's answer."""
    major, minor, micro = answer["python"]
    return Machine(
        python=(major, minor, micro), executable=answer["executable"], system=answer["system"], machine=answer["machine"],
        libc=(answer["libc"][0], answer["libc"][1]), macos=answer["macos"], directory=answer["directory"],
        enrolled=answer["mark"] is not None, taken=answer["taken"], writable=answer["writable"], free=answer["free"],
        uv=answer["uv"], venv=answer["venv"],
    )  # fmt: skip


def name_for(host: str, taken: Collection[str]) -> str:
    """An alias from an ssh destination: the machine's own name, with a number where another worker has it."""
    machine = re.sub(r"^[a-z]+://", "", host).rpartition("@")[2].partition(":")[0]
    first = machine if re.fullmatch(r"[0-9.]+", machine) else machine.partition(".")[0]
    name = re.sub(r"[^A-Za-z0-9]+", "-", first).strip("-")[:50] or "worker"
    names = {other.casefold() for other in taken}
    return next(
        candidate for n in range(1, len(names) + 3) if (candidate := name if n == 1 else f"{name}-{n}").casefold() not in names
    )


def candidates(ours: tuple[int, int]) -> list[str]:
    """Commands that may be a Python, our own version first."""
    versions = [ours, *(version for version in ((3, 13), (3, 12), (3, 11), (3, 14)) if version != ours)]
    return [*(f"python{major}.{minor}" for major, minor in versions), "python3"]


def find_script(given: str | None, ours: tuple[int, int]) -> str:
    """A script for sh that prints a line for each Python it finds."""
    look = """\
PATH="$PATH:$HOME/.local/bin:$HOME/bin:/usr/local/bin:/opt/homebrew/bin:$HOME/miniconda3/bin:$HOME/miniforge3/bin"
show() {
  "$1" -I -c 'import sys; print("phalanx-python", sys.version_info[0], sys.version_info[1], sys.executable)' 2>/dev/null
}
"""
    if given is not None:
        return f"{look}show {shlex.quote(given)}\nexit 0\n"
    names = " ".join(candidates(ours))
    return (
        f'{look}for name in {names}; do show "$name"; done\n'
        "if command -v uv >/dev/null 2>&1; then show \"$(uv python find '>=3.11' 2>/dev/null)\"; fi\nexit 0\n"
    )


def read_interpreters(text: str) -> list[Interpreter]:
    """The Pythons in the script's output, among whatever else a login prints."""
    found = re.findall(r"^phalanx-python (\d+) (\d+) (/.*)$", text, re.MULTILINE)
    return [Interpreter(version=(int(major), int(minor)), path=path.strip()) for major, minor, path in found]


def choose(found: Sequence[Interpreter], ours: tuple[int, int], oldest: tuple[int, int] = OLDEST) -> Interpreter | None:
    """Our own version if it is there, else the first that is not too old; ``oldest`` is what our JAX needs."""
    fit = [interpreter for interpreter in found if interpreter.version >= max(oldest, OLDEST)]
    same = [interpreter for interpreter in fit if interpreter.version == ours]
    return next(iter([*same, *fit]), None)


def requirements(backend: Backend, jax: str, jaxlib: str, plugins: Collection[str]) -> list[str]:
    """What is installed beside Phalanx: exactly our JAX, for CUDA with the plugin that we have or else the older one."""
    extra = ""
    if backend == "cuda":
        extra = "[cuda13]" if any("cuda13" in plugin for plugin in plugins) else "[cuda12]"
    return [f"jax{extra}=={jax}", f"jaxlib=={jaxlib}"]


def platform_tags(machine: Machine) -> list[str]:
    """The wheel platforms that run there, the newest first. Raises ``InvalidRequest`` for a system without wheels."""
    if machine.system == "linux":
        libc, version = machine.libc
        if libc != "glibc":
            raise InvalidRequest("there are no wheels of JAX for that system: its C library is not glibc")
        minor = int(version.split(".")[1])
        tags = [f"manylinux_2_{n}_{machine.machine}" for n in range(minor, _OLDEST_GLIBC - 1, -1)]
        old = [f"{name}_{machine.machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1")]
        return [*tags, *old, f"linux_{machine.machine}"]
    if machine.system == "darwin":
        newest = int(machine.macos.split(".")[0] or 11)
        return [f"macosx_{n}_0_{kind}" for n in range(newest, 10, -1) for kind in (machine.machine, "universal2")]
    raise InvalidRequest(f"there are no wheels of JAX for {machine.system}")


def download_arguments(machine: Machine, wheel: Path, wanted: Sequence[str], folder: Path) -> list[str]:
    """The arguments of ``pip download`` for everything that machine needs."""
    major, minor, _ = machine.python
    arguments = ["download", "--quiet", "--dest", str(folder), "--only-binary=:all:", "--python-version", f"{major}.{minor}"]
    arguments += ["--implementation", "cp"]
    for tag in platform_tags(machine):
        arguments += ["--platform", tag]
    return [*arguments, f"{wheel}[worker]", *wanted]


def removal_steps(machine: Machine, name: str, file: Path) -> tuple[str, ...]:
    """What will be done to take a machine out, a sentence a step."""
    environment = (f"remove the environment in {machine.directory} on that machine",) if machine.enrolled else ()
    return (*environment, f"remove the record {name} from {file}")


def steps(machine: Machine, asked: Enrolment, name: str, wanted: Sequence[str], version: str) -> list[str]:
    """What will be done, a sentence a step."""
    with_uv = "uv" if machine.uv else "venv and pip"
    python = ".".join(map(str, machine.python))
    source = "wheels that are downloaded here and sent along" if asked.offline else "that machine's own package index"
    verb = "renew the environment in" if machine.enrolled else "make an environment in"
    lines = [
        f"{verb} {machine.directory} with {with_uv}, from {machine.executable} (Python {python})",
        f"install Phalanx {version}, sent as a wheel, and {', '.join(wanted)} into it, from {source}",
        "start a worker there over ssh and compare its handshake, as a run does",
    ]
    if asked.into is not None:
        lines.append(f"write the record {name} into {asked.into}, once that has passed")
    return [*lines, "never use sudo, and touch nothing else on that machine"]
