"""What there is to tell of a run: what each member did, and why a fit stopped."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.lockstep.machine import Lockstep
from phalanx_coordinator.members.membership import Standing
from phalanx_coordinator.members.placement import Placement
from phalanx_coordinator.members.remote_members import RemoteMembers
from phalanx_proto.errors import NonFinite
from phalanx_proto.jobs import MemberReport
from phalanx_worker.pool import Pool


def fit_reports(
    placement: Placement,
    pool: Pool,
    tallies: Mapping[str, Any],
    remote: RemoteMembers,
    standings: Mapping[str, Standing],
    machine: Lockstep | None,
    compute: Mapping[str, int],
) -> tuple[MemberReport, ...]:
    """One report a member, in their order. ``compute`` holds nanoseconds by remote member, ``standings`` their losses."""
    reports = []
    for record in placement.members:
        if record.transport == "local":
            reports.append(_local(record.name, placement, pool, tallies))
        else:
            assert machine is not None
            rows, updates = machine.accepted[record.name]
            standing = standings[record.name]
            report = remote_report(record, remote, compute.get(record.name), standing)
            reports.append(dataclasses.replace(report, rows=rows, updates=updates))
    return tuple(reports)


def simulation_reports(
    placement: Placement,
    pool: Pool,
    remote: RemoteMembers,
    standings: Mapping[str, Standing],
    compute: Mapping[str, int],
    samples: Mapping[str, int],
) -> tuple[MemberReport, ...]:
    """One report a member, in their order. ``compute`` holds nanoseconds and ``samples`` counted samples by member."""
    reports = []
    for record in placement.members:
        nanoseconds = compute.get(record.name, 0)
        if record.transport == "local":
            engines = zip(placement.owners, pool.engines, strict=True)
            device = next(str(e.ready["device"]["kind"]) for o, e in engines if o is not None and o.name == record.name)
            report = MemberReport(name=record.name, backend=record.backend, device=device, compute_seconds=nanoseconds / 1e9)
        else:
            report = remote_report(record, remote, nanoseconds, standings[record.name])
        reports.append(dataclasses.replace(report, samples=samples.get(record.name, 0)))
    return tuple(reports)


def remote_report(record: WorkerRecord, remote: RemoteMembers, nanoseconds: int | None, standing: Standing) -> MemberReport:
    """What is known of a remote member whatever it did; one that was never there has no device and no numeric class."""
    handshake, worker = remote.handshakes.get(record.name), remote.workers.get(record.name)
    found = None if handshake is None else handshake.backend(record.backend)
    return MemberReport(
        name=record.name, backend=record.backend, device=found.devices[record.device] if found and found.devices else "",
        compute_seconds=None if nanoseconds is None else nanoseconds / 1e9,
        resident=None if worker is None else worker.resident,
        numeric_class=None if handshake is None else handshake.numeric_class, losses=standing.losses,
        incarnation=standing.incarnation,
    )  # fmt: skip


def _local(name: str, placement: Placement, pool: Pool, tallies: Mapping[str, Any]) -> MemberReport:
    owned = [
        (slot, engine)
        for slot, (owner, engine) in enumerate(zip(placement.owners, pool.engines, strict=True))
        if owner is not None and owner.name == name
    ]
    mine = [tallies["tallies"][slot] for slot, _ in owned]
    engine = owned[0][1]
    return MemberReport(
        name=name, backend=engine.slot.backend, device=str(engine.ready["device"]["kind"]),
        rows=sum(tally["rows"] for tally in mine), updates=max(tally["updates"] for tally in mine),
        compute_seconds=sum(tally["compute"] for tally in mine) / 1e9,
        resident=tallies["resident"] if owned[0][0] == 0 else None,
    )  # fmt: skip


def non_finite(update: int, found: Mapping[str, Any], member: str) -> NonFinite:
    """The error that names update, block, rows and the block's member, from what the canonical engine diagnosed."""
    advice = "nothing of this update was committed; lower the rate, clip the gradient or look at these rows"
    if found["block"] is None:
        return NonFinite(f"update {update}: every sum is finite, but the updated parameters are not; {advice}", update=update)
    block, rows = int(found["block"]), list(found["rows"])
    listed = ", ".join(map(str, rows[:8])) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
    return NonFinite(
        f"update {update}: the sums of block {block} (rows {listed}; member {member}) are not finite; {advice}",
        update=update, block=block, rows=rows, member=member,
    )  # fmt: skip
