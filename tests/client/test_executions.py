import dataclasses
from pathlib import Path
from typing import Any

import pytest

from phalanx.executions import cluster, device, local
from phalanx_proto.errors import InvalidExperiment
from phalanx_proto.execution import Cluster, Device, Local


def test_executions_are_values() -> None:
    assert local() == Local(workers=0, chunk=None, dtype="float64")
    assert local(workers=4, chunk=65536, dtype="float32") == Local(workers=4, chunk=65536, dtype="float32")
    assert device("cpu", "float64") == Device(backend="cpu", dtype="float64", ordinal=0)
    assert device("cuda", "float32", ordinal=1, chunk=8) == Device(backend="cuda", dtype="float32", ordinal=1, chunk=8)
    assert cluster("group.toml") == Cluster(file=Path("group.toml"))
    assert cluster(Path("group.toml"), chunk=10).chunk == 10
    with pytest.raises(dataclasses.FrozenInstanceError):
        local().workers = 2  # type: ignore[misc]


def test_the_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cluster("~/group.toml").file == tmp_path / "group.toml"


def test_metal_has_no_float64() -> None:
    with pytest.raises(InvalidExperiment, match="Metal has no Float64"):
        device("mps", "float64")
    assert device("mps", "float32").backend == "mps"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": -1}, "workers must be from 0 to 256"),
        ({"workers": 257}, "workers must be from 0 to 256"),
        ({"workers": True}, "workers must be a whole number"),
        ({"chunk": 0}, "chunk must be from 1"),
        ({"chunk": 2.5}, "chunk must be a whole number"),
        ({"dtype": "float16"}, "dtype must be one of float32, float64"),
    ],
)
def test_local_refuses(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiment, match=message):
        local(**wrong)


def test_device_lists_every_fault() -> None:
    wrong: Any = "tpu"
    dtype: Any = "bfloat16"
    with pytest.raises(InvalidExperiment) as raised:
        device(wrong, dtype, ordinal=-1, chunk=0)
    assert len(raised.value.problems) == 4
    assert raised.value.problems[0] == "backend must be one of cpu, cuda, mps; not 'tpu'"


@pytest.mark.parametrize("file", ["", 3, None, b"group.toml"])
def test_cluster_takes_a_path(file: Any) -> None:
    with pytest.raises(InvalidExperiment, match="file must be the path of a cluster file"):
        cluster(file)
