"""One digest whoever took part: members behind ssh, by a forward or a relay, mixed with local and socket members."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import phalanx
from phalanx.results import Fitted
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_proto.execution import Cluster, Execution
from phalanx_proto.experiment import DType
from tests.hosts.lab import Lab
from tests.hosts.machines import UIDS
from tests.hosts.workers import write_group
from tests.system.groups import classifier

HITS = 785_856
"""Of a million samples of seed 42 (DESIGN §3.10)."""
ROWS = phalanx.datasets.synthetic(1200, 8, 3, seed=1).rows("train")


@dataclass(frozen=True)
class Row:
    """A group: "L" local, "S" socket, "F" ssh with a forward, "R" ssh with a relay; and weights for each fit."""

    places: str
    weights: tuple[tuple[float, ...], ...]
    milliseconds: float = 0.0
    slots: int = 1


TABLE = [
    Row("LFR", ((1, 1, 1), (3, 1, 2))),
    pytest.param(Row("F", ((1,),)), marks=pytest.mark.slow),
    pytest.param(Row("R", ((1,),), slots=2), marks=pytest.mark.slow),
    pytest.param(Row("FS", ((1, 7), (7, 1))), marks=pytest.mark.slow),
    pytest.param(Row("FLSRF", ((1, 1, 1, 1, 1), (1, 2, 3, 4, 5))), marks=pytest.mark.slow),
    pytest.param(Row("FFL", ((1, 1, 1),), milliseconds=10.0), marks=pytest.mark.slow),
]
COLUMNS: list[tuple[int, DType]] = [(32, "float64"), (700, "float32")]
HOSTS = ("alpha", "beta", "gamma")


def fit(batch: int, execution: Execution) -> Fitted:
    config = phalanx.training(epochs=2, batch=batch, rate=0.01, seed=3)
    return phalanx.fit(classifier(), ROWS, config, execution=execution, reproducible="bitwise")


@dataclass
class Group:
    """A group that is warm."""

    row: Row
    records: list[WorkerRecord]
    folder: Path

    def executions(self, precision: DType) -> Iterator[Cluster]:
        """The group under each of its weights."""
        for weights in self.row.weights:
            pairs = zip(self.records, weights, strict=True)
            members = [dataclasses.replace(record, weight=weight) for record, weight in pairs]
            yield write_group(self.folder, members, precision)


@pytest.fixture(scope="module", params=TABLE, ids=lambda row: f"{row.places}-{row.milliseconds:.0f}ms-{row.slots}")
def group(
    request: pytest.FixtureRequest, hosts: Lab, expected: dict[DType, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Group]:
    """One group for all columns; nothing of it is left on any host."""
    row: Row = request.param
    with ExitStack() as stack:
        records = []
        for n, place in enumerate(row.places):
            name, host = f"m{n}", HOSTS[n % 3]
            if place in "LS":
                records.append(WorkerRecord(name=name, transport="local" if place == "L" else "socket", slots=row.slots))
                continue
            closed = {"AllowStreamLocalForwarding": "no"} if place == "R" else {}
            there = stack.enter_context(hosts.server(host, **closed)) if closed else ()
            options = (*there, *(hosts.delayed(row.milliseconds) if row.milliseconds else ()))
            records.append(hosts.record(host, *options, name=name, slots=row.slots))
        started = Group(row, records, tmp_path_factory.mktemp("groups"))
        fit(300, next(started.executions("float64")))
        yield started
        phalanx.shutdown()
    assert hosts.leftovers() == {}


@pytest.fixture(scope="module")
def expected() -> dict[DType, str]:
    """What one engine here gives."""
    return {dtype: fit(batch, phalanx.local(1, dtype=dtype)).digest for batch, dtype in COLUMNS}


@pytest.mark.parametrize(("batch", "dtype"), COLUMNS)
def test_the_digest_does_not_depend_on_the_way_to_a_member(
    expected: dict[DType, str], group: Group, batch: int, dtype: DType
) -> None:
    for execution in group.executions(dtype):
        fitted = fit(batch, execution)
        assert (fitted.digest, fitted.level) == (expected[dtype], "bitwise")
        assert sum(member.rows or 0 for member in fitted.members) == 2 * 1200
        assert all(member.rows for member in fitted.members)


def test_nor_do_the_hits_and_nothing_private_is_told(group: Group, hosts: Lab, tmp_path: Path) -> None:
    execution = next(group.executions("float64"))
    output = tmp_path / "job"
    found = phalanx.monte_carlo(samples=10**6, seed=42, execution=execution, output=output)
    assert found.hits == HITS and all(member.samples for member in found.members)
    told = "".join(path.read_text() for path in output.glob("*.json")) + str(found.manifest) + found.summary()
    addresses = {host.address for host in hosts.hosts.values() if hosts.isolated}
    for secret in (*HOSTS, *addresses, str(hosts.folder), "ProxyCommand", *UIDS):
        assert f'"{secret}"' not in told and (secret in (*HOSTS, *UIDS) or secret not in told)
    assert all(record.transport in told for record in group.records)
