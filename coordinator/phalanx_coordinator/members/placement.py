"""From an execution to the members that will carry it out, checked against this machine's allocation."""

from dataclasses import dataclass, field

from phalanx_coordinator.cluster.reading import read_cluster
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members import admission
from phalanx_proto.errors import InvalidExperiment, Unavailable
from phalanx_proto.execution import Cluster, Device, Execution, Local
from phalanx_proto.experiment import DType
from phalanx_worker.allocation import require_slots
from phalanx_worker.inventory import Inventory
from phalanx_worker.pool import SlotSpec


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Who computes: members in their fixed order, and the coordinator's own engines."""

    kind: str
    dtype: DType
    members: tuple[WorkerRecord, ...]
    chunk: int | None = None
    oversubscribe: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def local(self) -> tuple[WorkerRecord, ...]:
        """Members in the coordinator's own pool."""
        return tuple(member for member in self.members if member.transport == "local")

    @property
    def remote(self) -> tuple[WorkerRecord, ...]:
        """Members behind a daemon."""
        return tuple(member for member in self.members if member.transport != "local")

    @property
    def owners(self) -> tuple[WorkerRecord | None, ...]:
        """For each slot of the pool the member it works for. Slot 0 is the canonical engine, on CPU: where it is no
        member's own it only commits, and its owner is None.
        """  # noqa: D205
        slots = [member for member in self.local for _ in range(member.slots)]
        cpu = next((member for member in slots if member.backend == "cpu"), None)
        if cpu is None:
            return (None, *slots)
        slots.remove(cpu)
        return (cpu, *slots)

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """What each engine of the pool runs on."""
        return tuple(
            SlotSpec() if owner is None else SlotSpec(backend=owner.backend, ordinal=owner.device) for owner in self.owners
        )

    @property
    def weights(self) -> tuple[float, ...]:
        """The share of each slot of the pool."""
        return tuple(0.0 if owner is None else owner.weight / owner.slots for owner in self.owners)


def place(execution: Execution, inventory: Inventory) -> Placement:
    """The members of an execution; raises Unavailable, InvalidCluster or InvalidExperiment before anything starts."""
    match execution:
        case Local():
            return _local(execution, inventory)
        case Device():
            return _device(execution, inventory)
        case Cluster():
            return _cluster(execution, inventory)


def _local(execution: Local, inventory: Inventory) -> Placement:
    if execution.workers < 0 or execution.workers > admission.MAX_LOCAL_SLOTS:
        raise InvalidExperiment(f"workers must be 0 to {admission.MAX_LOCAL_SLOTS}, not {execution.workers}")
    workers = execution.workers or admission.automatic_workers(inventory.slots, inventory.physical_cpus)
    require_slots(workers, inventory.allocation, f"local(workers={workers})")
    members = tuple(WorkerRecord(name=f"local-{n}", transport="local") for n in range(1, workers + 1))
    return Placement(kind="local", dtype=execution.dtype, members=members, chunk=execution.chunk)


def _device(execution: Device, inventory: Inventory) -> Placement:
    if execution.backend == "mps" and execution.dtype == "float64":
        raise InvalidExperiment("mps has no float64 (Metal computes in 32 bits); use device('mps', 'float32')")
    require_backend(inventory, execution.backend, execution.ordinal, f"device({execution.backend!r})")
    member = WorkerRecord(name=execution.backend, transport="local", backend=execution.backend, device=execution.ordinal)
    return Placement(kind="device", dtype=execution.dtype, members=(member,), chunk=execution.chunk)


def require_backend(inventory: Inventory, backend: str, ordinal: int, who: str) -> None:
    """Raises Unavailable, saying why, unless this machine has the accelerator."""
    if backend == "cpu":
        if ordinal:
            raise Unavailable(f"{who}: the CPU is one device, ordinal {ordinal} is not there")
        return
    found = inventory.accelerator(backend)
    if found is None or not found.devices:
        reason = found.reason if found is not None else "it was not looked for"
        raise Unavailable(f"{who}: no {backend} device was found: {reason}", backend=backend)
    if ordinal >= len(found.devices):
        raise Unavailable(f"{who}: device {ordinal} was asked for, {len(found.devices)} found: {', '.join(found.devices)}")


def _cluster(execution: Cluster, inventory: Inventory) -> Placement:
    group = read_cluster(execution.file)
    for record in group.workers:
        if record.here:
            require_backend(inventory, record.backend, record.device, record.name)
    notes = admission.check_allocation(
        group.workers, slots=inventory.slots, reason=inventory.allocation.reason, oversubscribe=group.oversubscribe
    )
    return Placement(
        kind="cluster", dtype=group.precision, members=tuple(group.workers), chunk=execution.chunk,
        oversubscribe=group.oversubscribe, notes=tuple(notes),
    )  # fmt: skip
