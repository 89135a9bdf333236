"""Cluster files: what is read, and every fault with its line."""

import os
import re
from pathlib import Path

import pytest

from phalanx_coordinator.cluster.reading import ClusterFile, parse_cluster, private_file_faults, read_cluster
from phalanx_proto.errors import InvalidCluster

HEAD = 'version = 2\nprecision = "float32"\n'
ONE = '[[worker]]\nname = "atlas-01"\ntransport = "local"\n'


def write(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path = folder / "group.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidCluster) as caught:
        parse_cluster(text.encode())
    return caught.value.problems


def worker(fields: str, head: str = HEAD) -> str:
    return head + ONE + fields + "\n"


def test_a_whole_file(tmp_path: Path) -> None:
    text = """version = 2
precision = "float32"
oversubscribe = true
[[worker]]
name = "atlas-01"
transport = "local"
slots = 2
backend = "cpu"
weight = 1.5

[[worker]]          # a second one
name = "gpu"
transport = "socket"
backend = "cuda"
device = 3
"""
    group = read_cluster(write(tmp_path, text))
    assert (group.precision, group.oversubscribe, len(group.workers)) == ("float32", True, 2)
    first, second = group.workers
    assert (first.slots, first.backend, first.weight, first.device) == (2, "cpu", 1.5, 0)
    assert (second.slots, second.backend, second.weight, second.device) == (1, "cuda", 1.0, 3)


def test_defaults() -> None:
    group = parse_cluster((HEAD + ONE).encode())
    assert group.oversubscribe is False
    assert group.workers[0].public() == {
        "name": "atlas-01",
        "transport": "local",
        "slots": 1,
        "backend": "cpu",
        "device": 0,
        "weight": 1.0,
    }


SSH = (
    HEAD
    + """[[worker]]
name = "atlas-02"
transport = "ssh"
host = "someone@research-peer"
python = "/opt/secret/bin/python"
ssh_options = ["-F", "/home/me/lab.conf"]
slots = 2
backend = "cuda"
device = 0
weight = 2
"""
)


def test_ssh_is_read() -> None:
    group = parse_cluster(SSH.encode())
    record = group.workers[0]
    assert (record.host, record.python) == ("someone@research-peer", "/opt/secret/bin/python")
    assert record.ssh_options == ("-F", "/home/me/lab.conf")
    assert record.directory is None and not record.here


def test_endpoints_are_private() -> None:
    group = parse_cluster(SSH.encode())
    for text in (repr(group), repr(group.workers[0]), str(group.workers[0].public())):
        assert not any(word in text for word in ("someone", "research-peer", "secret", "lab.conf"))
    broken = SSH.replace("/opt/secret", "opt/secret").replace("someone@", "-someone@").replace('["-F"', "[1")
    assert len(problems(broken)) == 3
    assert not any(word in " ".join(problems(broken)) for word in ("someone", "research-peer", "secret", "lab.conf"))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ('"-fN"', ["-f", "-N"]),
        ('"-v", "-n"', ["-n"]),
        ('"-G"', ["-G"]),
        ('"-W", "secret:22"', ["-W"]),
        ('"-oRemoteCommand=secret", "-o", "SessionType none"', ["RemoteCommand", "SessionType"]),
        ('"-o", "remotecommand = none", "-F", "-N", "-iN", "-oStdinNull=no", "-J", "fGNn"', []),
    ],
)
def test_options_that_keep_ssh_from_running_a_worker_are_refused_by_name(options: str, names: list[str]) -> None:
    text = SSH.replace('"-F", "/home/me/lab.conf"', options)
    if not names:
        assert parse_cluster(text.encode()).workers[-1].ssh_options[2] == "-F"
        return
    found = problems(text)
    assert [re.findall(r"ssh_options must not have (\S+), for", line) for line in found] == [[name] for name in names]
    assert "secret" not in " ".join(found)


def test_everything_wrong_is_told_at_once_with_its_line() -> None:
    text = """version = 2
precision = "float16"
oversubscribe = 1
colour = "blue"
[[worker]]
name = "a"
transprot = "local"
transport = "locl"
slots = 0

[[worker]]
name = "A"
transport = "local"
slots = true
backend = "gpu"
weight = inf
[[worker]]
name = "über uns"
transport = "ssh"
python = "bin/python"
"""
    listed = problems(text)
    expected = [
        ("line 2: ", "precision must be float32 or float64"),
        ("line 3: ", "oversubscribe must be true or false"),
        ("line 4: ", "unknown key 'colour'"),
        ("line 7: worker a: ", "did you mean transport?"),
        ("line 8: worker a: ", "did you mean local?"),
        ("line 9: worker a: ", "slots must be a whole number from 1 to 256"),
        ("line 12: ", "is taken by worker 1"),
        ("line 14: worker A: ", "slots must"),
        ("line 15: worker A: ", "backend must be one of cpu, cuda, mps"),
        ("line 16: worker A: ", "weight must be a positive, finite number"),
        ("line 17: worker 3: ", "host is missing"),
        ("line 18: worker 3: ", "letters, digits and hyphens"),
        ("line 20: worker 3: ", "python must be an absolute path"),
    ]
    assert len(listed) == len(expected)
    for problem, (start, words) in zip(listed, expected, strict=True):
        assert problem.startswith(start) and words in problem


@pytest.mark.parametrize(
    ("fields", "line", "words"),
    [
        ("slots = 1.0", 6, "slots must"),
        ("slots = 257", 6, "slots must"),
        ('slots = "2"', 6, "slots must"),
        ("weight = 0", 6, "weight must"),
        ("weight = -1", 6, "weight must"),
        ("weight = nan", 6, "weight must"),
        ("weight = true", 6, "weight must"),
        ("weight = 1" + "0" * 400, 6, "weight must"),
        ("device = 1", 6, "device is for cuda and mps"),
        ("device = -1", 6, "device must"),
        ('backend = "cuda"\nslots = 2', 7, "an accelerator is one slot"),
        ('backend = "tpu"', 6, "backend must be one of cpu, cuda, mps"),
        ('host = "peer"', 6, "host is for transport ssh"),
        ('python = "/bin/python"', 6, "python is for transport ssh"),
        ('[worker.extra]\nname = "x"', 3, "unknown key 'extra'"),
    ],
)
def test_one_fault_in_a_record(fields: str, line: int, words: str) -> None:
    (problem,) = problems(worker(fields))
    assert problem.startswith(f"line {line}: worker atlas-01: ") and words in problem


@pytest.mark.parametrize("name", ["", "a b", "a_b", "a.b", "a" * 64, "naïve", "a\\n", "../x"])
def test_names(name: str) -> None:
    (problem,) = problems(HEAD + f'[[worker]]\nname = "{name}"\ntransport = "local"\n')
    assert problem.startswith("line 4: worker 1: name must be 1 to 63 letters, digits and hyphens")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", '""'),
        ("host", '"-oProxyCommand=x"'),
        ("host", '"two words"'),
        ("host", "3"),
        ("python", '"~/bin/python"'),
        ("python", '"/a\\nb"'),
        ("ssh_options", '"-F"'),
        ("ssh_options", "[1]"),
        ("directory", '"tmp"'),
        ("directory", '"/tmp/with space"'),
        ("directory", '"/tmp/%h"'),
        ("directory", f'"/{"x" * 50}"'),
    ],
)
def test_ssh_fields(field: str, value: str) -> None:
    fields = {"host": '"peer"', "python": '"/bin/python"', "ssh_options": "[]"} | {field: value}
    text = HEAD + '[[worker]]\nname = "a"\ntransport = "ssh"\n' + "".join(f"{k} = {v}\n" for k, v in fields.items())
    (problem,) = problems(text)
    assert f"worker a: {field} must be" in problem


def test_mps_has_no_float64() -> None:
    (problem,) = problems(worker('backend = "mps"', head=HEAD.replace("32", "64")))
    assert problem.startswith("line 6: ") and "mps has no float64" in problem
    assert parse_cluster(worker('backend = "mps"').encode()).workers[0].backend == "mps"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('precision = "float32"\n' + ONE, "version is missing"),
        ("version = 2\n" + ONE, "precision is missing"),
        (HEAD.replace("2\n", "3\n", 1) + ONE, "line 1: version must be 2, not 3"),
        (HEAD.replace("2\n", "true\n", 1) + ONE, "line 1: version must be 2, not True"),
        (HEAD.replace("2\n", '"2"\n', 1) + ONE, "line 1: version must be 2, not '2'"),
        (HEAD, "there are no workers"),
        (HEAD + "worker = []\n", "there are no workers"),
        (HEAD + 'worker = [{name = "a", transport = "local", weight = 0}]\n', "line 3: worker a: weight must"),
        (HEAD + '[worker]\nname = "a"\n', "line 3: worker must be a list of tables"),
        (HEAD + ONE + "slots = \n", "line 6: this is not TOML"),
        (HEAD + ONE + "slots = [1,\n", "this is not TOML"),
        (HEAD + ONE + 'name = "twice"\n', "line 6: this is not TOML"),
        ("ANER_CLUSTERS 1\n", "line 1: this is not TOML"),
        ("", "version is missing"),
    ],
)
def test_the_file_as_a_whole(text: str, words: str) -> None:
    assert any(words in problem for problem in problems(text))


def test_records_are_counted() -> None:
    def many(count: int) -> str:
        return HEAD + "".join(f'[[worker]]\nname = "w{n}"\ntransport = "local"\n' for n in range(count))

    assert len(parse_cluster(many(32).encode()).workers) == 32
    (problem,) = problems(many(33))
    assert problem == "line 99: there are 33 workers; at most 32 can be enrolled"


def test_not_utf8_names_its_line() -> None:
    with pytest.raises(InvalidCluster, match="line 3: this is not UTF-8"):
        parse_cluster(HEAD.encode() + b"# caf\xe9\n")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o700, 0o606])
def test_a_file_that_others_may_read_is_refused_with_its_other_faults(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, HEAD.replace("2\n", "9\n", 1) + ONE, mode)
    with pytest.raises(InvalidCluster) as caught:
        read_cluster(path)
    first, second = caught.value.problems
    assert f"mode {mode:04o}" in first and f"chmod 600 {path}" in first
    assert "version must be 2" in second


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_is_read(tmp_path: Path, mode: int) -> None:
    assert isinstance(read_cluster(str(write(tmp_path, HEAD + ONE, mode))), ClusterFile)


def test_another_users_file() -> None:
    (problem,) = private_file_faults(mode=0o100600, owner=7, me=8, path=Path("/a b"))
    assert problem.startswith("'/a b' belongs to another user")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, "rubbish")
    os.chown(path, 12345, 12345)
    with pytest.raises(InvalidCluster, match="belongs to another user") as caught:
        read_cluster(path)
    assert len(caught.value.problems) == 1


def test_a_file_too_big(tmp_path: Path) -> None:
    with pytest.raises(InvalidCluster, match="larger than 1,048,576 bytes"):
        read_cluster(write(tmp_path, b"#" * (2**20 + 1)))


def test_no_file_a_folder_and_a_pipe(tmp_path: Path) -> None:
    with pytest.raises(InvalidCluster, match="cannot be read"):
        read_cluster(tmp_path / "none.toml")
    with pytest.raises(InvalidCluster, match="not a regular file"):
        read_cluster(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InvalidCluster, match="not a regular file"):
        read_cluster(tmp_path / "pipe")
