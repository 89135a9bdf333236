"""What keeps a machine from being enrolled, and the one next step. Pure. What names hosts and paths is private."""

import re
from collections.abc import Sequence

from phalanx_coordinator.enroll.plan import NEEDED, OLDEST, Interpreter, Machine
from phalanx_proto.errors import PhalanxError, Unavailable

_FULL = r"No space left on device|Disk quota exceeded|\[Errno 28\]|os error 28"
_OUT_OF_REACH = (
    r"(?i)NewConnectionError|Temporary failure in name resolution|Name or service not known|Connection refused|"
    r"Network is unreachable|ConnectTimeout|Read timed out|Max retries exceeded|error sending request|dns error|"
    r"nodename nor servname|Could not connect|Failed to fetch"
)
_NO_VERSION = r"(?i)No matching distribution found for (\S+)|no version of (\S+?)[ =<>]|No solution found"
_NO_ENSUREPIP = r"ensurepip is not|No module named '?(?:venv|ensurepip)|python3[\d.]*-venv"


def no_python(found: Sequence[Interpreter], oldest: tuple[int, int], given: str | None) -> PhalanxError:
    """There is none that is new enough."""
    wanted = ".".join(map(str, max(oldest, OLDEST)))
    if given is not None and not found:
        return Unavailable(
            "the Python that was named is not there, or does not run", private="--python must be a path on that machine"
        )
    versions = ", ".join(sorted({".".join(map(str, interpreter.version)) for interpreter in found})) or "no Python at all"
    step = (
        f"install Python {wanted} or newer over there, which needs no rights: uv python install {wanted} "
        "(https://docs.astral.sh/uv), or conda; or name one that is there with --python"
    )
    return Unavailable(f"that machine has no Python {wanted} or newer; found: {versions}", private=step, failure="old_python")


def obstacle(machine: Machine) -> PhalanxError | None:
    """What can be known to fail before anything is changed."""
    if machine.taken and not machine.enrolled:
        step = f"{machine.directory} was not made by phalanx enroll; name another one with --directory"
        return Unavailable("the directory of the environment is in use by something else", private=step, failure="not_ours")
    if not machine.writable:
        step = f"{machine.directory} cannot be made; name a directory of yours over there with --directory"
        return Unavailable("the directory of the environment cannot be written", private=step, failure="not_writable")
    if machine.uv is None and not machine.venv:
        return no_venv()
    if machine.free < NEEDED and not machine.enrolled:
        return disk_full(
            f"{machine.free / 1e9:.1f} GB are free at {machine.directory}, and about {NEEDED / 1e9:.1f} are needed"
        )
    return None


def no_venv() -> PhalanxError:
    """Python there cannot make environments."""
    step = (
        "install uv over there, which needs no rights (https://docs.astral.sh/uv), or have its package python3-venv installed, "
        "or name another Python with --python"
    )
    return Unavailable("the Python of that machine has no module venv, and there is no uv", private=step, failure="no_venv")


def disk_full(detail: str) -> PhalanxError:
    """There is no room."""
    step = f"{detail}; make room, or name a directory on another disk with --directory"
    return Unavailable("the disk of that machine is full", private=step, failure="disk_full")


def refused(kind: str, text: str, output: str) -> PhalanxError:
    """What the far side answered instead of a result."""
    everything = f"{text}\n{output}"
    last = f"\nits last words:\n{_indented(output)}" if output else ""
    if kind == "disk_full" or re.search(_FULL, everything):
        return disk_full(text + last)
    if re.search(_NO_ENSUREPIP, everything):
        return no_venv()
    if kind == "install" and re.search(_OUT_OF_REACH, everything):
        step = f"send the packages along: phalanx enroll … --offline{last}"
        return Unavailable("that machine reaches no package index", private=step, failure="no_index")
    if kind == "install" and (found := re.search(_NO_VERSION, everything)):
        what = next((name for name in found.groups() if name), "a package")
        step = f"its index may lack it, or its Python be too new or too old: name another with --python, or try --offline{last}"
        return Unavailable(f"no package {what} for that machine was found", private=step, failure="no_package")
    if kind == "busy":
        return Unavailable("another phalanx enroll is at work on that machine", private=f"{text}; wait for it", failure=kind)
    if kind == "in_use":
        step = f"{text}; wait until its run has ended, or look for left-over workers with phalanx doctor"
        return Unavailable("a worker is running from that environment", private=step, failure=kind)
    if kind == "not_ours":
        step = f"{text}; name another directory with --directory"
        return Unavailable("that directory was not made by phalanx enroll", private=step, failure=kind)
    return Unavailable("the environment could not be made", private=text + last, failure=kind or "install")


def no_download(output: str) -> PhalanxError:
    """The wheels could not be got here."""
    last = f"\npip's last words:\n{_indented(output)}" if output else ""
    if re.search(r"No module named '?pip", output):
        return Unavailable("this environment has no pip to download with: python -m ensurepip", failure="no_pip")
    if re.search(_FULL, output):
        return Unavailable("the disk of this machine is full; let TMPDIR name a place with room", failure="disk_full")
    step = f"--offline downloads here what is sent along, so this machine must reach an index that has it{last}"
    return Unavailable("the wheels for that machine could not be downloaded here", private=step, failure="no_download")


def _indented(output: str) -> str:
    return "\n".join(f"    {line}" for line in output.splitlines()[-15:])
