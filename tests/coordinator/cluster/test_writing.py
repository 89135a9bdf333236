"""Cluster files as they are written: what is written reads back equal, and a change leaves everything else as it was."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx_coordinator.cluster.private_files import create_private, replace_private
from phalanx_coordinator.cluster.reading import ClusterFile, parse_cluster
from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.cluster.writing import group_text, header, record_text, with_record, without_record
from phalanx_proto.errors import InvalidCluster, InvalidRequest

NAMES = st.text("abcXYZ019-", min_size=1, max_size=12)
WORDS = st.text(st.characters(exclude_categories=("Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn", "Cs")), min_size=1, max_size=20)
OPTIONS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
WEIGHTS = st.floats(min_value=1e-300, max_value=1e300) | st.integers(1, 100).map(float)

FILE = """\
# Our group.
version = 2
precision = "float32"   # of all

# The laptop itself.
[[worker]]
name = "laptop"
transport = "local"

# Bought last year.
[[worker]]
name = "atlas-01"   # an alias
transport = "ssh"
host = "peer"
python = "/opt/a#b/bin/python"
slots = 2  # half of it
weight = 3
# to be moved

[[worker]]
name = "last"
transport = "socket"
"""
ATLAS = WorkerRecord(name="atlas-01", transport="ssh", host="me@peer", python="/new/bin/python", slots=4)


def read(text: str) -> ClusterFile:
    return parse_cluster(text.encode(), empty=True)


@st.composite
def records(draw: st.DrawFn, name: str) -> WorkerRecord:
    transport = draw(st.sampled_from(["local", "socket", "ssh"]))
    backend = draw(st.sampled_from(["cpu", "cuda", "mps"]))
    fields: dict[str, Any] = {"name": name, "transport": transport, "backend": backend, "weight": draw(WEIGHTS)}
    fields["slots"] = draw(st.integers(1, 256)) if backend == "cpu" else 1
    fields["device"] = 0 if backend == "cpu" else draw(st.integers(0, 1023))
    if transport == "ssh":
        fields["host"] = draw(WORDS.filter(lambda word: word[0] != "-"))
        fields["python"] = "/" + draw(WORDS)
        fields["ssh_options"] = tuple(draw(st.lists(OPTIONS, max_size=4)))
        fields["directory"] = draw(st.none() | st.text("abz09/._-", max_size=30).map("/".__add__))
    return WorkerRecord(**fields)


@st.composite
def groups(draw: st.DrawFn) -> ClusterFile:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.casefold))
    workers = tuple(draw(records(name)) for name in names)
    precision = (
        "float32" if any(worker.backend == "mps" for worker in workers) else draw(st.sampled_from(["float32", "float64"]))
    )
    return ClusterFile(precision=precision, oversubscribe=draw(st.booleans()), workers=workers)  # type: ignore[arg-type]


@given(groups())
def test_what_is_written_reads_back_equal(group: ClusterFile) -> None:
    assert read(group_text(group)) == group


@given(groups(), st.data())
def test_a_change_changes_one_record(group: ClusterFile, data: st.DataObject) -> None:
    record = data.draw(records(group.workers[-1].name).filter(lambda r: r.backend != "mps" or group.precision == "float32"))
    changed = with_record(group_text(group), record)
    assert read(changed).workers == (*group.workers[:-1], record)
    assert read(without_record(changed, record.name)).workers == group.workers[:-1]


def test_the_properties_draw_every_field_of_a_record() -> None:
    drawn = {"name", "transport", "slots", "backend", "device", "weight", "host", "python", "ssh_options", "directory"}
    assert {field.name for field in dataclasses.fields(WorkerRecord) if field.compare} == drawn


def legacy_text(group: ClusterFile) -> str:
    """The group as the earlier system would have written it."""
    lines = ["ANER_CLUSTER 2", "# a comment", f"precision {group.precision.capitalize()}", ""]
    for worker in group.workers:
        endpoint = [worker.transport, worker.host or "-", worker.python or "-"]
        lines.append("\t".join([worker.name, *endpoint, str(worker.slots), worker.backend, str(worker.weight)]))
    return "\n".join(lines) + "\n"


def is_legacy(worker: WorkerRecord) -> bool:
    """Whether the text format can say it."""
    plain = worker.device == 0 and worker.ssh_options == () and worker.directory is None and worker.name != "precision"
    return plain and worker.transport != "socket" and not (worker.host or "").startswith("#")


@given(groups())
def test_the_text_format_converts_to_an_equal_group(group: ClusterFile) -> None:
    workers = [dataclasses.replace(worker, device=0, ssh_options=(), directory=None) for worker in group.workers]
    kept = tuple(worker for worker in workers if is_legacy(worker))
    if kept:
        legacy = dataclasses.replace(group, oversubscribe=False, workers=kept)
        found = read(legacy_text(legacy))
        assert found == legacy and read(group_text(found)) == found


def test_the_legacy_text_converts() -> None:
    text = "ANER_CLUSTER 2\nprecision Float32\na local - - 2 cpu 1.5\nb ssh me@peer /bin/python 1 cuda\n"
    written = group_text(read(text))
    assert read(written) == read(text)
    assert (
        written
        == """\
version = 2
precision = "float32"

[[worker]]
name = "a"
transport = "local"
slots = 2
weight = 1.5

[[worker]]
name = "b"
transport = "ssh"
slots = 1
backend = "cuda"
host = "me@peer"
python = "/bin/python"
"""
    )


def test_a_record_is_updated_in_place() -> None:
    changed = with_record(FILE, ATLAS)
    expected = FILE.replace('host = "peer"', 'host = "me@peer"').replace("/opt/a#b/bin", "/new/bin")
    assert changed == expected.replace("slots = 2  # half of it", "slots = 4  # half of it").replace("weight = 3\n", "")
    assert with_record(changed, ATLAS) == changed


def test_a_new_record_comes_last() -> None:
    new = dataclasses.replace(ATLAS, name="new", ssh_options=("-F", "/a b"))
    changed = with_record(FILE, new)
    assert changed == FILE + "\n" + record_text(new)
    assert read(changed).workers[-1] == new


def test_a_record_goes_with_the_comment_above_it() -> None:
    changed = without_record(FILE, "atlas-01")
    assert "atlas" not in changed and "Bought last year" not in changed
    assert "# The laptop itself." in changed and [worker.name for worker in read(changed).workers] == ["laptop", "last"]


def test_the_last_record_may_go_and_another_come() -> None:
    alone = header("float64") + "\n" + record_text(ATLAS)
    emptied = without_record(alone, "atlas-01")
    assert read(emptied).workers == () and emptied == header("float64")
    assert with_record(emptied, ATLAS) == alone


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ANER_CLUSTER 1\na local - - 1\n", "earlier text format"),
        (FILE.replace('host = "peer"', 'host = "peer"\nssh_options = [\n  "-F",\n  "/x",\n]'), "takes several lines"),
        ('version = 2\nprecision = "float32"\nworker = [{name = "atlas-01", transport = "local"}]\n', "line of its own"),
        (FILE.replace('host = "peer"', 'python."x" = 1'), "line 15: this is not TOML"),
        (header("float32") + "".join(f'[[worker]]\nname = "w{n}"\ntransport = "local"\n' for n in range(32)), "at most 32"),
    ],
)
def test_what_cannot_be_changed_is_said(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        with_record(text, ATLAS)


def test_a_record_that_the_group_cannot_have() -> None:
    apple = dataclasses.replace(ATLAS, backend="mps", slots=1)
    with pytest.raises(InvalidRequest, match="mps has no float64"):
        with_record(FILE.replace("float32", "float64"), apple)
    with pytest.raises(InvalidRequest, match="there is no worker 'x' in this file; it has laptop, atlas-01, last"):
        without_record(FILE, "x")
    with pytest.raises(InvalidCluster):
        with_record("version = 9\n", ATLAS)


def test_private_files_are_new_or_whole(tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    old = os.umask(0)
    try:
        create_private(path, "one")
        with pytest.raises(InvalidRequest, match="is there already"):
            create_private(path, "two")
        link = tmp_path / "link.toml"
        link.symlink_to(path)
        replace_private(link, "three")
    finally:
        os.umask(old)
    assert link.is_symlink() and path.read_text() == "three" and path.stat().st_mode & 0o777 == 0o600
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["group.toml", "link.toml"]
    with pytest.raises(InvalidRequest, match="cannot be written: No such file"):
        create_private(tmp_path / "no" / "x", "")
