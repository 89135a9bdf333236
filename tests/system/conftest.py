"""What the whole-system tests share."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx_coordinator.runs import fit
from phalanx_proto.execution import Cluster
from tests.system.groups import Place, write_group

MakeGroup = Callable[..., Cluster]


@pytest.fixture
def make_group(tmp_path: Path) -> MakeGroup:
    """Writes a group file and gives its execution."""

    def make(*places: Place, **settings: Any) -> Cluster:
        return write_group(tmp_path, places, **settings)

    return make


@pytest.fixture
def every_update_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is reported after each commit, however soon after the last one."""
    monkeypatch.setattr(fit, "TELL_EVERY", 0.0)


@pytest.fixture
def fresh() -> Iterator[None]:
    """A coordinator with nothing warm, of which nothing is left afterwards."""
    phalanx.shutdown()
    yield
    phalanx.shutdown()
