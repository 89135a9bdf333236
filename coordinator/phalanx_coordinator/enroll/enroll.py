"""Enrolling a machine: an environment with this very version there, proved by a handshake, and then a record of it here.

The order is what makes it safe: look, say what will be done, install, prove, write. Whatever fails before the last step, the
cluster file is as it was; and all of it can be repeated.
"""

import asyncio
import dataclasses
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, metadata
from pathlib import Path, PurePosixPath
from typing import Any

from phalanx_coordinator.cluster import private_files
from phalanx_coordinator.cluster.reading import ClusterFile, parse_cluster, read_private
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.cluster.writing import header, record_text, with_record, without_record
from phalanx_coordinator.doctor.examine import examine
from phalanx_coordinator.engines_here import require_engines
from phalanx_coordinator.enroll import failures as enroll_failures
from phalanx_coordinator.enroll import plan as enroll_plan
from phalanx_coordinator.enroll.far_call import FarMachine, Tell
from phalanx_coordinator.enroll.plan import Enrolment, Interpreter, Machine
from phalanx_coordinator.enroll.wheel import build_wheel
from phalanx_coordinator.members.admission import automatic_workers
from phalanx_coordinator.members.findings import Examination
from phalanx_coordinator.members.launch import LogSink
from phalanx_coordinator.members.timing import Deadlines
from phalanx_proto.errors import InvalidCluster, InvalidRequest, Unavailable
from phalanx_proto.version import VERSION
from phalanx_worker.inventory import Inventory

PROVISIONAL = "/venv/bin/python"
"""Stands for the executable until it is known."""


@dataclass(frozen=True, kw_only=True)
class Enrolled:
    """What came of it."""

    record: WorkerRecord
    examination: Examination | None
    """Of the one machine; None for a dry run."""
    steps: tuple[str, ...]
    """What was to be done. Private."""
    written: Path | None
    """The cluster file; None where none was named, or nothing was done."""
    unknown: tuple[str, ...] = ()
    """Keys of the record that a dry run does not know yet."""

    @property
    def text(self) -> str:
        """The record as TOML. Private."""
        return record_text(self.record, leave_out=self.unknown)


@dataclass(frozen=True, kw_only=True)
class Removed:
    """What came of taking a machine out."""

    environment: bool
    """Whether there was one that enroll had made; for a dry run, whether there is."""
    steps: tuple[str, ...]
    """What was to be done. Private."""
    last: bool
    """Whether the cluster file has no worker without this one."""


async def enroll(asked: Enrolment, here: Inventory, *, deadlines: Deadlines, log: LogSink, tell: Tell) -> Enrolled:
    """Enrol a machine from this one, ``here``; ``tell`` hears each step.

    Raises ``Unavailable`` and its like with the next step where that cannot be, ``InvalidRequest`` for the cluster file.
    """
    text = cluster_text(asked)
    require_engines()
    return await Enroller(asked, text, here, deadlines, log, tell).run()


class Enroller:
    """Carries out one enrolment into a cluster file of a certain text."""

    def __init__(
        self, asked: Enrolment, text: str, here: Inventory, deadlines: Deadlines, log: LogSink, tell: Tell
    ) -> None:  # fmt: skip
        self._asked, self._here, self._deadlines, self._log, self._tell = asked, here, deadlines, log, tell
        self._group = parse_cluster(text.encode(), empty=True)
        self._old, self._record = record_for(asked, self._group)
        with_record(text, self._record)  # refuses now what could not be written then
        self._directory = asked.directory or (environment_of(self._old) if self._old is not None else None)
        self._far = FarMachine(self._record, tell)

    async def run(self) -> Enrolled:
        """All of it; raises as ``enroll``."""
        interpreter = await self._find_python()
        directory = self._directory or enroll_plan.DIRECTORY
        answer = await self._far.ask(interpreter.path, "examine", {"directory": directory})
        machine = enroll_plan.read_machine(answer)
        obstacle = enroll_failures.obstacle(machine)
        if obstacle is not None:
            raise obstacle
        jax, jaxlib = _own_jax(self._here)
        wanted = enroll_plan.requirements(self._record.backend, jax, jaxlib, _installed_plugins())
        steps = tuple(enroll_plan.steps(machine, self._asked, self._record.name, wanted, VERSION))
        if self._asked.dry_run:
            return self._planned(machine, steps)
        for step in steps:
            self._tell(f"will {step}")
        installed = await self._install(interpreter, machine, wanted)
        record = self._finished(installed)
        examination = await self._prove(record)
        written = self._write(record)
        return Enrolled(record=record, examination=examination, steps=steps, written=written)

    def _planned(self, machine: Machine, steps: tuple[str, ...]) -> Enrolled:
        """What a dry run knows."""
        slots = 1 if self._record.backend != "cpu" else self._asked.slots or (self._old.slots if self._old is not None else 0)
        record = dataclasses.replace(self._record, python=f"{machine.directory}/venv/bin/python", slots=slots or 1)
        return Enrolled(record=record, examination=None, steps=steps, written=None, unknown=() if slots else ("slots",))

    async def _find_python(self) -> Interpreter:
        ours, oldest = sys.version_info[:2], _oldest_python()
        found = enroll_plan.read_interpreters(await self._far.script(enroll_plan.find_script(self._asked.python, ours)))
        chosen = enroll_plan.choose(found, ours, oldest)
        if chosen is None:
            raise enroll_failures.no_python(found, oldest, self._asked.python)
        return chosen

    async def _install(self, interpreter: Interpreter, machine: Machine, wanted: list[str]) -> Mapping[str, Any]:
        with tempfile.TemporaryDirectory(prefix="phalanx-wheels-") as name:
            folder = Path(name)
            wheel = await asyncio.to_thread(build_wheel, folder)
            if self._asked.offline:
                self._tell("downloading the wheels for that machine")
                await _download(enroll_plan.download_arguments(machine, wheel, wanted, folder))
            request = {
                "directory": machine.directory, "requirements": wanted, "wheel": wheel.name, "offline": self._asked.offline,
                "version": VERSION,
            }  # fmt: skip
            return await self._far.ask(interpreter.path, "install", request, sorted(folder.iterdir()))

    def _finished(self, installed: Mapping[str, Any]) -> WorkerRecord:
        """The record, now that the executable is known, and what the machine has."""
        slots = self._asked.slots or (self._old.slots if self._old is not None else 0)
        if self._record.backend != "cpu":
            slots = 1
        found = installed["inventory"]
        slots = slots or automatic_workers(int(found["slots"]), found.get("physical_cpus"))
        return dataclasses.replace(self._record, python=str(installed["python"]), slots=slots)

    async def _prove(self, record: WorkerRecord) -> Examination:
        """A worker there joins a group of its own; raises ``Unavailable`` if it could not."""
        alone = dataclasses.replace(self._group, workers=(record,), path=self._asked.into)
        found = await examine(
            alone, self._here, clean=False, deadlines=self._deadlines, log=self._log, tell=self._tell
        )  # fmt: skip
        (finding,) = found.findings
        if finding.failure is not None:
            raise finding.failure
        if not finding.can_join:
            rows = "; ".join(f"{row['field']}: wanted {row['wanted']}, found {row['found']}" for row in finding.refusals)
            text = f"worker {record.name} was installed but cannot join, so its record was not written: {rows}"
            raise Unavailable(text, private=found.steps.get(record.name, ""), worker=record.name, failure="refused")
        return found

    def _write(self, record: WorkerRecord) -> Path | None:
        path = self._asked.into
        if path is None:
            return None
        now = cluster_text(self._asked)  # somebody may have written meanwhile
        text = with_record(now, record)
        if path.exists():
            private_files.replace_private(path, text)
        else:
            private_files.create_private(path, text)
        return path


def cluster_text(asked: Enrolment) -> str:
    """The cluster file's text, or the head of a new one. Raises ``InvalidCluster`` or ``InvalidRequest``."""
    path = asked.into
    if path is None or not path.exists():
        return header(asked.dtype or ("float32" if asked.backend == "mps" else "float64"))
    data, faults = read_private(path)
    if data is None or faults:
        raise InvalidCluster(faults)
    precision = parse_cluster(data, path=path, empty=True).precision
    if asked.dtype not in (None, precision):
        raise InvalidRequest(f"that cluster file is {precision}; leave --dtype out, or name another file")
    return data.decode()


def record_for(asked: Enrolment, group: ClusterFile) -> tuple[WorkerRecord | None, WorkerRecord]:
    """The record that is there already, if any, and the new one but for its executable.

    A record is the same if it has the name that was given, or without one if it leads to the same host.
    """
    by_name = {record.name.casefold(): record for record in group.workers}
    if asked.name is not None:
        old = by_name.get(asked.name.casefold())
    else:
        old = next((record for record in group.workers if record.transport == "ssh" and record.host == asked.host), None)
    if old is not None and old.transport != "ssh":
        raise InvalidRequest(f"worker {old.name} of that file is on this machine; give another name with --name")
    base = old or WorkerRecord(name=asked.name or enroll_plan.name_for(asked.host, by_name), transport="ssh")
    backend = asked.backend or base.backend
    record = dataclasses.replace(
        base, host=asked.host, python=PROVISIONAL, backend=backend, slots=asked.slots or base.slots,
        device=base.device if backend != "cpu" else 0,
        ssh_options=base.ssh_options if asked.ssh_options is None else asked.ssh_options,
    )  # fmt: skip
    return old, record


async def remove(name: str, path: Path, tell: Tell, *, dry_run: bool = False) -> Removed:
    """Remove a machine's environment, if enroll made it, and then its record; a dry run looks and changes nothing.

    Raises ``InvalidRequest`` where the record is none of enroll's, or what keeps the machine from being reached.
    """
    data, faults = read_private(path)
    if data is None or faults:
        raise InvalidCluster(faults)
    text = data.decode()
    changed = without_record(text, name)
    workers = parse_cluster(data, path=path).workers
    record = next(worker for worker in workers if worker.name == name)
    directory = environment_of(record)
    if directory is None:
        raise InvalidRequest(
            f"worker {record.name} was not made by phalanx enroll, so nothing of it is removed; to take it out of the group, "
            "delete its lines"
        )
    far = FarMachine(record, tell)
    found = enroll_plan.read_interpreters(await far.script(enroll_plan.find_script(None, sys.version_info[:2])))
    chosen = enroll_plan.choose(found, sys.version_info[:2])
    if chosen is None:
        raise enroll_failures.no_python(found, enroll_plan.OLDEST, None)
    there = enroll_plan.read_machine(await far.ask(chosen.path, "examine", {"directory": directory}))
    steps = enroll_plan.removal_steps(there, name, path)
    planned = Removed(environment=there.enrolled, steps=steps, last=len(workers) == 1)
    if there.taken and not there.enrolled:
        raise enroll_failures.refused("not_ours", f"{directory} has no mark of phalanx enroll, so it is left as it is", "")
    if dry_run:
        return planned
    for step in steps:
        tell(f"will {step}")
    answer = await far.ask(chosen.path, "remove", {"directory": directory})
    private_files.replace_private(path, changed)
    return dataclasses.replace(planned, environment=bool(answer["removed"]))


def environment_of(record: WorkerRecord) -> str | None:
    """The directory that enroll made for a record; None if its executable is not of one."""
    python = PurePosixPath(record.python or "")
    made = record.transport == "ssh" and python.parts[-3:] == ("venv", "bin", "python")
    return str(python.parents[2]) if made else None


async def _download(arguments: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise enroll_failures.no_download(output.decode(errors="replace"))


def _installed_plugins() -> list[str]:
    names = (distribution.metadata["Name"] or "" for distribution in distributions())
    return [name for name in names if name.startswith("jax-cuda")]


def _own_jax(here: Inventory) -> tuple[str, str]:
    """Our versions of jax and jaxlib, which the other machine gets too."""
    jax, jaxlib = (here.platform.versions.get(name) for name in ("jax", "jaxlib"))
    if jax is None or jaxlib is None:
        raise Unavailable(
            "this machine has no JAX, which a coordinator computes with: pip install '.[worker]' where its sources are"
        )
    return jax, jaxlib


def _oldest_python() -> tuple[int, int]:
    """What our JAX needs, by its metadata."""
    try:
        wanted = metadata("jax")["Requires-Python"] or ""
    except PackageNotFoundError:
        wanted = ""
    major, _, minor = wanted.removeprefix(">=").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else enroll_plan.OLDEST
