"""From an execution to its members, or a refusal before anything starts."""

import dataclasses
from pathlib import Path

import pytest

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members.placement import Placement, place
from phalanx_proto.errors import InvalidCluster, InvalidExperiment, Unavailable
from phalanx_proto.execution import Cluster, Device, Local
from phalanx_worker.accelerators import Accelerator
from phalanx_worker.inventory import Inventory, inventory
from phalanx_worker.pool import SlotSpec

REAL = inventory(False)


def machine(slots: int = 4, *accelerators: Accelerator) -> Inventory:
    """This machine, but for the number of its slots and what accelerators it has."""
    allocation = dataclasses.replace(REAL.allocation, slots=slots, reason=f"the test has {slots} slots")
    return dataclasses.replace(REAL, allocation=allocation, physical_cpus=slots, accelerators=accelerators)


CUDA = Accelerator(backend="cuda", platform="cuda", devices=("H", "H"), reason="")
NO_CUDA = Accelerator(backend="cuda", platform=None, devices=(), reason="no driver is loaded")


def cluster(folder: Path, *workers: str, head: str = "") -> Cluster:
    text = f'version = 2\nprecision = "float32"\n{head}\n' + "".join(f"[[worker]]\n{worker}\n" for worker in workers)
    path = folder / "group.toml"
    path.write_text(text)
    path.chmod(0o600)
    return Cluster(file=path, chunk=7)


def member(name: str, transport: str = "local", extra: str = "") -> str:
    return f'name = "{name}"\ntransport = "{transport}"\n{extra}'


def test_a_positive_number_is_what_you_get() -> None:
    found = place(Local(workers=3, dtype="float32", chunk=5), machine(4))
    assert [record.name for record in found.members] == ["local-1", "local-2", "local-3"]
    assert (found.kind, found.dtype, found.chunk, found.weights) == ("local", "float32", 5, (1.0, 1.0, 1.0))
    assert found.remote == ()


@pytest.mark.parametrize(("slots", "chosen"), [(1, 1), (2, 2), (4, 3), (64, 8)])
def test_zero_is_a_conservative_choice(slots: int, chosen: int) -> None:
    assert len(place(Local(), machine(slots)).members) == chosen


def test_more_workers_than_slots_are_refused_never_clipped() -> None:
    with pytest.raises(Unavailable, match=r"local\(workers=5\): asked for 5 slots, found 4, because the test has 4 slots"):
        place(Local(workers=5), machine(4))
    with pytest.raises(InvalidExperiment, match="workers must be 0 to 256, not 257"):
        place(Local(workers=257), machine(1000))
    with pytest.raises(InvalidExperiment, match="workers must be 0 to 256, not -1"):
        place(Local(workers=-1), machine())


def test_one_cpu_device() -> None:
    found = place(Device(backend="cpu", dtype="float64"), machine())
    assert found.owners == found.members
    assert found.slots == (SlotSpec(backend="cpu", ordinal=0),)
    with pytest.raises(Unavailable, match="the CPU is one device, ordinal 1 is not there"):
        place(Device(backend="cpu", ordinal=1), machine())


def test_mps_has_no_float64_wherever_it_is_asked_for() -> None:
    with pytest.raises(InvalidExperiment, match="mps has no float64"):
        place(Device(backend="mps", dtype="float64"), machine())


def test_an_accelerator_computes_beside_the_canonical_engine() -> None:
    found = place(Device(backend="cuda", dtype="float32", ordinal=1), machine(4, CUDA))
    assert found.owners == (None, found.members[0])
    assert found.slots == (SlotSpec(), SlotSpec(backend="cuda", ordinal=1))
    assert found.weights == (0.0, 1.0)


def test_an_absent_accelerator_is_refused_with_the_reason() -> None:
    with pytest.raises(Unavailable, match="no cuda device was found: no driver is loaded"):
        place(Device(backend="cuda"), machine(4, NO_CUDA))
    with pytest.raises(Unavailable, match="no cuda device was found: it was not looked for"):
        place(Device(backend="cuda"), machine(4))
    with pytest.raises(Unavailable, match="device 2 was asked for, 2 found: H, H"):
        place(Device(backend="cuda", ordinal=2), machine(4, CUDA))


def test_a_cluster_keeps_its_order_and_splits_local_from_remote(tmp_path: Path) -> None:
    workers = (member("a", "socket"), member("b", extra="slots = 2\nweight = 3"), member("c", "socket"))
    found = place(cluster(tmp_path, *workers), machine(4))
    assert [record.name for record in found.members] == ["a", "b", "c"]
    assert [record.name for record in found.remote] == ["a", "c"]
    assert [record.name for record in found.local] == ["b"]
    assert [owner and owner.name for owner in found.owners] == ["b", "b"]
    assert (found.weights, found.dtype, found.chunk, found.notes) == ((1.5, 1.5), "float32", 7, ())


def test_without_a_local_member_the_canonical_engine_only_commits(tmp_path: Path) -> None:
    found = place(cluster(tmp_path, member("a", "socket")), machine())
    assert (found.owners, found.slots, found.weights) == ((None,), (SlotSpec(),), (0.0,))


def test_the_canonical_engine_is_the_first_cpu_member() -> None:
    gpu = WorkerRecord(name="gpu", transport="local", backend="cuda")
    cpu = WorkerRecord(name="cpu", transport="local")
    placement = Placement(kind="cluster", dtype="float32", members=(gpu, cpu))
    assert [owner and owner.name for owner in placement.owners] == ["cpu", "gpu"]


def test_all_members_of_one_machine_share_its_allocation(tmp_path: Path) -> None:
    workers = (member("a", extra="slots = 2"), member("b", "socket", "slots = 3"))
    with pytest.raises(Unavailable, match=r"ask for 5 CPU slots together \(a 2, b 3\), but 4 are found"):
        place(cluster(tmp_path, *workers), machine(4))
    found = place(cluster(tmp_path, *workers, head="oversubscribe = true"), machine(4))
    assert found.oversubscribe
    assert found.notes == (
        "oversubscribed: the workers on this machine ask for 5 CPU slots together (a 2, b 3), but 4 are found, because "
        "the test has 4 slots",
    )


@pytest.mark.parametrize("transport", ["local", "socket"])
def test_a_member_of_this_machine_without_its_accelerator_is_refused_at_once(tmp_path: Path, transport: str) -> None:
    execution = cluster(tmp_path, member("gpu", transport, 'backend = "cuda"'))
    with pytest.raises(Unavailable, match="gpu: no cuda device was found: no driver is loaded"):
        place(execution, machine(4, NO_CUDA))


def test_members_behind_ssh_take_nothing_of_this_machine(tmp_path: Path) -> None:
    extra = 'host = "peer"\npython = "/usr/bin/python3"\nslots = 64\n'
    gpu = extra.replace("slots = 64", 'backend = "cuda"')
    found = place(cluster(tmp_path, member("far", "ssh", extra), member("gpu", "ssh", gpu)), machine(1, NO_CUDA))
    assert [record.name for record in found.remote] == ["far", "gpu"]
    assert found.notes == () and found.slots == (SlotSpec(),)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    execution = cluster(tmp_path, member("a"))
    execution.file.chmod(0o644)
    with pytest.raises(InvalidCluster, match="has mode 0644; only you may have access"):
        place(execution, machine())
