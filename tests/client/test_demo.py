"""The demo's pure parts; that it runs is a system test."""

import stat
import tomllib
from collections.abc import Callable

import pytest

from phalanx.demo import Line, group_file, places, table, verdict
from phalanx.results import Fitted, Simulation
from phalanx_proto.execution import Cluster, Local
from phalanx_proto.jobs import Score

MakeFitted = Callable[..., Fitted]
MakeSimulation = Callable[..., Simulation]


def test_the_group_is_admitted_by_more_slots_only_where_there_is_one() -> None:
    assert [tomllib.loads(group_file(slots))["oversubscribe"] for slots in (1, 2, 8)] == [True, False, False]


@pytest.mark.parametrize(("slots", "workers"), [(1, [1]), (2, [1, 2])])
def test_places(slots: int, workers: list[int]) -> None:
    with places(slots) as found:
        *local, group = found.values()
        assert local == [Local(workers=number) for number in workers]
        assert isinstance(group, Cluster)
        assert stat.S_IMODE(group.file.stat().st_mode) == 0o600
        assert [worker["transport"] for worker in tomllib.loads(group.file.read_text())["worker"]] == ["socket", "socket"]
    assert not group.file.parent.exists()


def test_the_table(make_fitted: MakeFitted, make_simulation: MakeSimulation) -> None:
    score = Score(loss=0.1, rows=30, accuracy=0.9)
    lines = [
        Line(place="here", fitted=make_fitted(test=score), simulation=make_simulation()),
        Line(place="over there", fitted=make_fitted(), simulation=make_simulation()),
    ]
    assert table(lines).splitlines() == [
        "where       fit: digest       held out  seconds  pi: hits  seconds",
        "here        abababababababab  0.900     2.00     785,856   0.25",
        "over there  abababababababab  N/A       2.00     785,856   0.25",
    ]


def test_the_verdict(make_fitted: MakeFitted, make_simulation: MakeSimulation) -> None:
    here = Line(place="here", fitted=make_fitted(), simulation=make_simulation())
    there = Line(place="there", fitted=make_fitted(), simulation=make_simulation())
    assert verdict([here, there])[0]
    other_bits = Line(place="there", fitted=make_fitted(digest="cd" * 32), simulation=make_simulation())
    assert verdict([here, other_bits]) == (False, "These places differ from here: there.")
    other_hits = Line(place="there", fitted=make_fitted(), simulation=make_simulation(hits=1))
    assert verdict([here, there, other_hits]) == (False, "These places differ from here: there.")
