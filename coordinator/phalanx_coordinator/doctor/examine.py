"""The doctor: starts every worker of a group as a run does, asks it what a run asks, measures the way to it, and ends it.

It goes by ``RemoteMembers``, so that doctor and run cannot disagree. All machines are started side by side; their links are
measured one after another, since they would measure each other. A ``local`` member is tried as a daemon of the same engines.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Sequence

from phalanx_coordinator.cluster.reading import ClusterFile
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.doctor.strays import look_for_strays, place_of
from phalanx_coordinator.members import admission, link
from phalanx_coordinator.members.findings import Examination, Expected, Finding, StrayReport
from phalanx_coordinator.members.launch import LogSink
from phalanx_coordinator.members.next_steps import next_step
from phalanx_coordinator.members.placement import Placement
from phalanx_coordinator.members.remote_members import RemoteMembers
from phalanx_coordinator.members.timing import Deadlines
from phalanx_coordinator.waiting import side_by_side
from phalanx_proto.errors import OutOfTime, PhalanxError, Unavailable, WorkerLost
from phalanx_proto.fingerprint import source_fingerprint
from phalanx_proto.version import VERSION
from phalanx_worker.inventory import Inventory

PER_MACHINE = 180.0
"""Seconds in which a machine must have been started and have answered."""
Tell = Callable[[str], None]
"""Told of each step, for a person who waits."""


class Patient:
    """One record under examination; ``close`` leaves nothing of it."""

    def __init__(self, record: WorkerRecord, group: ClusterFile, deadlines: Deadlines, log: LogSink) -> None:
        daemon = dataclasses.replace(record, transport="socket") if record.transport == "local" else record
        self.finding = Finding(record=record)
        self._daemon = daemon
        self._placement = Placement(
            kind="cluster", dtype=group.precision, members=(daemon,), oversubscribe=group.oversubscribe
        )  # fmt: skip
        self._members = RemoteMembers(deadlines, log)

    def _note(self, **found: object) -> None:
        self.finding = dataclasses.replace(self.finding, **found)  # type: ignore[arg-type]

    async def start(self, machine: Inventory) -> None:
        """Start its worker and compare its handshake, each as a run does. What fails is noted."""
        name = self.finding.record.name
        try:
            async with asyncio.timeout(PER_MACHINE):
                await self._members.start(self._placement, "doctor")
            compared = self._members.compare(self._daemon, self._placement, machine)
            self._note(handshake=self._members.handshakes[name], refusals=compared.refusals, notes=compared.notes)
        except PhalanxError as error:
            self._note(failure=error)
            if self.finding.failure_kind == "not_ready":  # a backend or slots that are not there
                await self._look_plainly(machine)
        except TimeoutError:
            late = f"worker {name} had not answered after {PER_MACHINE:.0f} s"
            self._note(failure=OutOfTime(late, worker=name, failure="late"))
        if self.finding.handshake is not None:
            worker = self._members.workers[name]
            self._note(route="engines here" if self.finding.record.transport == "local" else worker.process.route)

    async def _look_plainly(self, machine: Inventory) -> None:
        """What the machine has, told by a worker with one slot of its CPU, where what the record asks for is not there."""
        plain = dataclasses.replace(self._daemon, backend="cpu", device=0, slots=1)
        placement = dataclasses.replace(self._placement, members=(plain,), oversubscribe=True)
        with contextlib.suppress(PhalanxError, TimeoutError):
            async with asyncio.timeout(PER_MACHINE):
                await self._members.start(placement, "doctor")
            compared = self._members.compare(self._daemon, self._placement, machine)
            rows = tuple(row for row in compared.refusals if row["field"] != "slots asked")
            self._note(handshake=self._members.handshakes[plain.name], refusals=rows, notes=compared.notes)

    async def measure(self) -> None:
        """Measure the way to it, where there is one."""
        finding = self.finding
        worker = self._members.workers.get(finding.record.name)
        if worker is None or finding.handshake is None or finding.record.transport == "local":
            return
        try:
            self._note(link=await link.measure(worker))
        except WorkerLost as lost:
            self._note(failure=lost)
        except PhalanxError as error:
            self._note(link_failure=error.message)

    def note_strays(self, report: StrayReport) -> None:
        """What was found of left-over workers on its machine."""
        self._note(strays=report)

    async def close(self) -> None:
        """End its worker."""
        await self._members.close()


async def examine(
    group: ClusterFile, machine: Inventory, *, clean: bool, deadlines: Deadlines, log: LogSink, tell: Tell
) -> Examination:
    """Examine every machine of ``group`` from this ``machine``; with ``clean``, end left-over workers too. Raises nothing."""
    patients = [Patient(record, group, deadlines, log) for record in group.workers]
    try:
        tell("starting a worker" if len(patients) == 1 else f"starting {len(patients)} workers side by side")
        await side_by_side(patient.start(machine) for patient in patients)
        for patient in patients:
            if patient.finding.handshake is not None and patient.finding.record.transport != "local":
                tell(f"measuring the way to {patient.finding.record.name}")
            await patient.measure()
    finally:
        await asyncio.shield(asyncio.gather(*(patient.close() for patient in patients)))
    tell("looking for left-over workers")
    await _find_strays(patients, clean)
    return _examination(group, machine, [patient.finding for patient in patients])


async def _find_strays(patients: Sequence[Patient], clean: bool) -> None:
    """Look once on each machine; the others of its records get the same report."""
    reached = [patient for patient in patients if patient.finding.record.here or patient.finding.handshake is not None]
    places = {place_of(patient.finding.record): patient.finding.record for patient in reached}
    reports = await asyncio.gather(*(look_for_strays(record, clean) for record in places.values()))
    found = dict(zip(places, reports, strict=True))
    for patient in reached:
        patient.note_strays(found[place_of(patient.finding.record)])


def _examination(group: ClusterFile, machine: Inventory, findings: Sequence[Finding]) -> Examination:
    problems: list[str] = []
    notes: list[str] = []
    try:
        notes = admission.check_allocation(
            group.workers, slots=machine.slots, reason=machine.allocation.reason, oversubscribe=group.oversubscribe
        )
    except Unavailable as refused:
        problems = [refused.message]
    steps = {finding.record.name: next_step(finding, group.path) for finding in findings if not finding.can_join}
    return Examination(
        expected=expected(group, machine), findings=tuple(findings), problems=problems, notes=notes, steps=steps
    )  # fmt: skip


def expected(group: ClusterFile, machine: Inventory) -> Expected:
    """The coordinator's own versions."""
    versions = machine.platform.versions
    return Expected(
        phalanx=VERSION, python=machine.platform.python, jax=versions.get("jax") or "not installed",
        jaxlib=versions.get("jaxlib") or "not installed", source=source_fingerprint(), dtype=group.precision,
    )  # fmt: skip
