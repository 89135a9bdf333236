"""The text format of the earlier system: what is read, and every fault with its line, by the same rules as TOML."""

from pathlib import Path

import pytest

from phalanx_coordinator.cluster.reading import ClusterFile, parse_cluster, read_cluster
from phalanx_proto.errors import InvalidCluster

ONE = """ANER_CLUSTER 1
# the machines of the group

laptop\tlocal  -  -  2
atlas-01  ssh  me@research-peer  /opt/aner/bin/worker  4   # the big one
"""
TWO = """ANER_CLUSTER 2
precision Float32
laptop   local localhost     /usr/bin/worker   1 cpu
atlas-01 ssh   research-peer /opt/bin/python   1 cuda 2.5
mac      ssh   mac.lab       /opt/bin/python#1 1 mps  1e1
"""


def parse(text: str) -> ClusterFile:
    return parse_cluster(text.encode())


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidCluster) as caught:
        parse(text)
    return caught.value.problems


def test_version_1_is_float64_on_the_cpu() -> None:
    group = parse(ONE)
    assert (group.precision, group.oversubscribe) == ("float64", False)
    laptop, atlas = group.workers
    assert (laptop.name, laptop.transport, laptop.slots, laptop.host, laptop.python) == ("laptop", "local", 2, None, None)
    assert (atlas.transport, atlas.host, atlas.python, atlas.slots) == ("ssh", "me@research-peer", "/opt/aner/bin/worker", 4)
    assert (atlas.backend, atlas.weight, atlas.ssh_options) == ("cpu", 1.0, ())


def test_version_2_gives_precision_backend_and_weight() -> None:
    group = parse(TWO)
    assert group.precision == "float32"
    assert [(w.name, w.backend, w.weight) for w in group.workers] == [
        ("laptop", "cpu", 1.0), ("atlas-01", "cuda", 2.5), ("mac", "mps", 10.0),
    ]  # fmt: skip
    assert group.workers[2].python == "/opt/bin/python#1"


def test_line_ends_of_another_system() -> None:
    assert parse(TWO.replace("\n", "\r\n")) == parse(TWO)


def test_everything_wrong_is_told_at_once_with_its_line() -> None:
    listed = problems("""ANER_CLUSTER 2
precision Float16
a   local - -                1 cpu
a   ssh   peer bin/python    1 cpu
b_c ssh   -x   /bin/python   0 gpu -1
d   ssh   peer /bin/python   two
e   shh   peer /bin/python   1 cpu
f   socket - -               1 cpu
g   local - bin/python       1 cpu
precision Float32
""")
    expected = [
        ("line 2: ", "precision must be Float32 or Float64"),
        ("line 4: worker a: ", "python must be an absolute path"),
        ("line 4: ", "the name 'a' is taken by worker 1"),
        ("line 5: worker 3: ", "name must be 1 to 63 letters, digits and hyphens"),
        ("line 5: worker 3: ", "backend must be one of cpu, cuda, mps"),
        ("line 5: worker 3: ", "slots must be a whole number from 1 to 256"),
        ("line 5: worker 3: ", "weight must be a positive, finite number"),
        ("line 5: worker 3: ", "host must be an ssh destination"),
        ("line 6: ", "a worker is 6 or 7 fields"),
        ("line 7: worker e: ", "transport must be one of local, ssh; did you mean ssh?"),
        ("line 8: worker f: ", "transport must be one of local, ssh"),
        ("line 9: worker 7: ", "the executable must be an absolute path, or - for a local worker"),
        ("line 10: ", "precision is given in line 2 already"),
    ]
    assert len(listed) == len(expected), listed
    for start, words in expected:
        assert any(problem.startswith(start) and words in problem for problem in listed), (start, words, listed)
    numbers = [int(problem.split(":")[0].removeprefix("line ")) for problem in listed]
    assert numbers == sorted(numbers)
    assert not any(word in " ".join(listed) for word in ("peer", "bin/python"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ANER_CLUSTER\n", "line 1: the first line must be ANER_CLUSTER 1 or ANER_CLUSTER 2"),
        ("ANER_CLUSTER 3\na local - - 1\n", "line 1: the first line must be"),
        ("ANER_CLUSTER 1 2\n", "line 1: the first line must be"),
        ("ANER_CLUSTER 1\n", "there are no workers"),
        ("ANER_CLUSTER 1\nprecision Float64\na local - - 1\n", "line 2: version 1 has no precision line"),
        ("ANER_CLUSTER 1\na local - - 1 cpu\n", "line 2: a worker is 5 fields"),
        ("ANER_CLUSTER 2\na local - - 1 cpu\n", "precision is missing; write a line: precision Float32 (or Float64)"),
        ("ANER_CLUSTER 2\nprecision Float32 Float64\na local - - 1 cpu\n", "line 2: precision must be"),
        ("ANER_CLUSTER 2\nprecision Float64\na ssh p /bin/p 1 mps\n", "line 3: worker a: mps has no float64"),
        ("ANER_CLUSTER 1\na local - - 1_0\n", "line 2: worker a: slots must"),
        ("ANER_CLUSTER 1\na local - - ٣\n", "line 2: worker a: slots must"),
        ("ANER_CLUSTER 2\nprecision Float32\na local - - 1 cpu nan\n", "line 3: worker a: weight must"),
        ("ANER_CLUSTER 2\nprecision Float32\na local - - 2 cuda\n", "line 3: worker a: an accelerator is one slot"),
    ],
)
def test_one_fault(text: str, words: str) -> None:
    (problem,) = problems(text)
    assert words in problem


def test_records_are_counted() -> None:
    many = "ANER_CLUSTER 1\n" + "".join(f"w{n} local - - 1\n" for n in range(33))
    assert problems(many) == ["line 34: there are 33 workers; at most 32 can be enrolled"]


def test_a_toml_file_may_speak_of_the_format() -> None:
    group = parse('# ANER_CLUSTER 1\nversion = 2\nprecision = "float32"\n[[worker]]\nname = "a"\ntransport = "socket"\n')
    assert group.workers[0].transport == "socket"


def test_a_file_that_others_may_read_is_refused_with_its_other_faults(tmp_path: Path) -> None:
    path = tmp_path / "group.aner"
    path.write_text("ANER_CLUSTER 1\na local - - 0\n")
    path.chmod(0o644)
    with pytest.raises(InvalidCluster) as caught:
        read_cluster(path)
    first, second = caught.value.problems
    assert "mode 0644" in first and second.startswith("line 2: worker a: slots must")
