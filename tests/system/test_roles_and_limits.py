"""What is refused before anything starts: every refusal is made in a place where no process can be started at all."""

import asyncio
import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import phalanx
from phalanx.dataset import Partition
from phalanx_proto.errors import InvalidCluster, InvalidExperiment, InvalidRequest, ProtectedRole, Unavailable
from phalanx_proto.execution import Execution
from phalanx_proto.experiment import Rows
from tests.system.conftest import MakeGroup
from tests.system.groups import children, classifier

NAN = float("nan")


@pytest.fixture(autouse=True)
def nothing_can_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Engines and daemons cannot be started, and no process is there afterwards that was not there before."""

    def started(*arguments: Any, **settings: Any) -> NoReturn:
        pytest.fail(f"a process was started: {arguments}")

    phalanx.shutdown()
    before = children()
    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    monkeypatch.setattr(subprocess, "Popen", started)
    yield
    assert children() == before
    phalanx.shutdown()


@pytest.fixture(scope="module")
def parts() -> Partition:
    return phalanx.datasets.iris().partition(validation=0.2, test=0.2, seed=42)


def fit(train: Rows | None, **settings: Any) -> phalanx.Fitted:
    config = {"epochs": 1, "batch": 32, "rate": 0.1}
    training = phalanx.training(**{**config, **settings.pop("training", {})})
    return phalanx.fit(classifier(4, 3), train, training, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["validation", "test"])
def test_protected_rows_are_not_fitted_on(parts: Partition, role: str) -> None:
    with pytest.raises(ProtectedRole, match=f"{role} rows cannot be fitted on; pass the partition's train rows"):
        fit(getattr(parts, role))


def test_only_validation_rows_validate(parts: Partition) -> None:
    for rows in (parts.train, parts.test):
        with pytest.raises(ProtectedRole):
            fit(parts.train, training={"validation": rows})


def test_a_dataset_or_array_has_no_role(parts: Partition) -> None:
    for data in (phalanx.datasets.iris(), parts.train.x, None):
        with pytest.raises(ProtectedRole):
            fit(data)  # type: ignore[arg-type]


def test_a_forged_role_is_refused(parts: Partition) -> None:
    assert parts.test is not None
    forged = dataclasses.replace(parts.test, role="train")
    with pytest.raises(ProtectedRole, match="are not the train rows that their fingerprint names"):
        fit(forged)


def test_test_rows_do_not_slip_in_by_hand(parts: Partition) -> None:
    assert parts.test is not None
    mixed = dataclasses.replace(
        parts.train, x=np.concatenate([parts.train.x, parts.test.x]), y=np.concatenate([parts.train.y, parts.test.y])
    )
    with pytest.raises(ProtectedRole, match="fingerprint"):
        fit(mixed)


def test_rows_of_two_datasets_do_not_mix(parts: Partition) -> None:
    other = phalanx.datasets.synthetic(50, 4, 3, seed=1).rows("validation")
    with pytest.raises(InvalidExperiment, match="come from another dataset"):
        fit(parts.train, training={"validation": other})


def test_a_wrong_width_is_refused() -> None:
    with pytest.raises(InvalidExperiment, match="the train rows have 5 features, the model takes 4"):
        fit(phalanx.datasets.synthetic(50, 5, 3, seed=1).rows("train"))


def test_a_label_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidExperiment, match="train labels go from 0 to 3; this model knows 0 to 2"):
        fit(phalanx.Dataset.from_arrays(np.zeros((4, 4)), [0, 1, 2, 3]).rows("train"))
    with pytest.raises(InvalidRequest, match="label -1 at row 1 is out of range"):
        phalanx.Dataset.from_arrays(np.zeros((2, 4)), [0, -1])


def test_a_feature_that_is_not_finite_is_refused(parts: Partition) -> None:
    x = np.zeros((4, 4))
    x[2, 1] = NAN
    with pytest.raises(InvalidRequest, match="nan at row 2, column 1"):
        phalanx.Dataset.from_arrays(x, [0, 1, 2, 0])
    with pytest.raises(ProtectedRole, match="fingerprint"):
        fit(dataclasses.replace(parts.train, x=np.full_like(parts.train.x, NAN)))


def test_mps_has_no_float64() -> None:
    with pytest.raises(InvalidExperiment, match="Metal has no Float64"):
        phalanx.device("mps", "float64")


def absent(backend: str) -> bool:
    found = phalanx.inventory().accelerator(backend)
    return found is None or not found.devices


@pytest.mark.parametrize("backend", ["cuda", "mps"])
def test_an_absent_backend_is_refused_with_the_reason(parts: Partition, make_group: MakeGroup, backend: str) -> None:
    if not absent(backend):
        pytest.skip(f"this machine has {backend}")
    with pytest.raises(Unavailable, match=rf"device\('{backend}'\): no {backend} device was found: \w+"):
        fit(parts.train, execution=phalanx.device(backend, "float32"))  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match=f"no {backend} device was found"):
        phalanx.monte_carlo(samples=10, execution=phalanx.device(backend, "float32"))  # type: ignore[arg-type]
    execution = make_group(("local", 1.0), precision="float32")
    for transport in ("local", "socket"):
        execution.file.write_text(
            f'version = 2\nprecision = "float32"\n[[worker]]\nname = "gpu"\ntransport = "{transport}"\nbackend = "{backend}"\n'
        )
        with pytest.raises(Unavailable, match=f"gpu: no {backend} device was found"):
            fit(parts.train, execution=execution)


def test_more_workers_than_the_allocation_are_refused(parts: Partition) -> None:
    slots = phalanx.inventory().slots
    with pytest.raises(Unavailable, match=f"asked for {slots + 1} slots, found {slots}, because"):
        fit(parts.train, execution=phalanx.local(slots + 1))
    with pytest.raises(InvalidExperiment, match="workers must be from 0 to 256"):
        phalanx.local(257)


def test_a_group_larger_than_the_allocation_is_refused(parts: Partition, make_group: MakeGroup) -> None:
    execution = make_group(("local", 1.0), ("socket", 1.0), slots=phalanx.inventory().slots)
    strict = execution.file.read_text().replace("oversubscribe = true", "oversubscribe = false")
    execution.file.write_text(strict)
    with pytest.raises(Unavailable, match=r"CPU slots together \(a \d+, b \d+\)"):
        fit(parts.train, execution=execution)


def test_a_file_that_others_can_read_is_refused(parts: Partition, make_group: MakeGroup) -> None:
    execution = make_group(("local", 1.0))
    execution.file.chmod(0o644)
    with pytest.raises(InvalidCluster, match="has mode 0644; only you may have access"):
        fit(parts.train, execution=execution)


def test_at_most_32_records_are_read(parts: Partition, make_group: MakeGroup) -> None:
    execution = make_group(("local", 1.0))
    more = "".join(f'[[worker]]\nname = "w{n}"\ntransport = "socket"\n' for n in range(32))
    execution.file.write_text(execution.file.read_text() + more)
    with pytest.raises(InvalidCluster, match=r"33 .*32"):
        fit(parts.train, execution=execution)


def test_a_member_that_would_get_no_rows_is_refused(parts: Partition, make_group: MakeGroup) -> None:
    execution = make_group(("local", 1.0), ("socket", 1.0), ("socket", 1.0))
    with pytest.raises(InvalidExperiment, match="c would get no rows in the 2 updates of this fit; use fewer members"):
        fit(parts.train, execution=execution, training={"epochs": 2, "batch": 90, "block": 90})
    with pytest.raises(InvalidExperiment, match="2 chunks for 3 members"):
        phalanx.monte_carlo(samples=2, execution=make_group(("local", 1.0), ("socket", 1.0), ("socket", 1.0), chunk=1))


@pytest.mark.parametrize("samples", [0, 10**12 + 1])
def test_samples_are_limited(samples: int) -> None:
    with pytest.raises(InvalidExperiment, match="samples must be from 1 to 1,000,000,000,000"):
        phalanx.monte_carlo(samples=samples)


@pytest.mark.parametrize("execution", [phalanx.local(1, chunk=1), phalanx.local(1, chunk=999)])
def test_chunks_are_limited(execution: Execution) -> None:
    with pytest.raises(InvalidExperiment, match="at most 1000000 are kept account of"):
        phalanx.monte_carlo(samples=10**9, execution=execution)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ((1_000_001, 1, 2), "1,000,001 rows are more than the 1,000,000 admitted"),
        ((1, 4_097, 2), "4,097 inputs"),
        ((1, 1, 257), "257 classes"),
        ((1, 1, 1), "classes must be at least 2"),
        ((2_000, 4_001, 2), "feature values"),
        ((1_000_000, 8, 63), "teacher work units"),
    ],
)
def test_generated_data_are_limited(size: tuple[int, int, int], said: str) -> None:
    with pytest.raises(InvalidExperiment, match=said):
        phalanx.datasets.synthetic(*size, seed=1)


def test_an_output_directory_must_be_new(parts: Partition, tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with pytest.raises(InvalidRequest, match="is there already"):
        fit(parts.train, execution=phalanx.local(1), output=tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "notes"]


def test_all_that_is_wrong_is_listed_at_once() -> None:
    rows = phalanx.Dataset.from_arrays(np.zeros((4, 5)), [0, 1, 2, 3]).rows("train")
    other = phalanx.datasets.synthetic(50, 3, 3, seed=1).rows("validation")
    with pytest.raises(InvalidExperiment) as caught:
        fit(rows, execution=phalanx.local(1), training={"validation": other})
    assert len(caught.value.problems) == 4
