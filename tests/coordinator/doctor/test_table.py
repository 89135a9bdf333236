"""From what was found to rows, next steps and a document: without a machine."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.doctor import table as doctor_table
from phalanx_coordinator.doctor.strays import place_of, read_report, strays_command
from phalanx_coordinator.doctor.table import ROWS, document, megabytes, stage, summary
from phalanx_coordinator.members.findings import Examination, Expected, Finding, StrayReport, StrayWorker
from phalanx_coordinator.members.link import LARGEST, LONG_ENOUGH, Link, next_size, quantile, rate
from phalanx_coordinator.members.next_steps import next_step, next_steps
from phalanx_coordinator.ssh.command import enroll_command
from phalanx_proto.errors import Unavailable
from phalanx_proto.handshake import PASSED, PROTOCOL, BackendFound, Handshake

SSH = WorkerRecord(
    name="atlas-01", transport="ssh", host="me@secret-host", python="/opt/p/bin/python", slots=2, ssh_options=("-F", "/a b")
)
HERE = WorkerRecord(name="laptop", transport="local")
EXPECTED = Expected(phalanx="0.1.0", python="3.12.3", jax="0.10.1", jaxlib="0.10.1", source="ab" * 32, dtype="float32")
STRAY = StrayWorker(pid=77, kind="daemon", processes=3, started=1.5, stopped=True)
FILE = Path("/g/group.toml")


def handshake(**changed: Any) -> Handshake:
    sound = Handshake(
        protocol=PROTOCOL, phalanx="0.1.0", source="ab" * 32, platform="Linux x86_64", python="3.12.3", jax="0.10.1",
        jaxlib="0.10.1", cpu_features="x86-64-v4", slots_asked=2, slots_found=4,
        backends=(BackendFound(name="cpu", devices=("cpu",), reason=""),), self_test=PASSED, pid=7, numeric_class="cd" * 32,
    )  # fmt: skip
    return dataclasses.replace(sound, **changed)


def row(field: str, wanted: str = "1", found: str = "2") -> dict[str, str]:
    return {"worker": "atlas-01", "field": field, "wanted": wanted, "found": found}


def well(record: WorkerRecord = SSH, **changed: Any) -> Finding:
    link = Link(round_trip_median=0.00031, round_trip_p95=0.0123, round_trips=50, up=1.25e9, down=43_000.0)
    sound = Finding(record=record, handshake=handshake(), route="forward", link=link, strays=StrayReport())
    return dataclasses.replace(sound, **changed)


def failed(kind: str, private: str = "do this", record: WorkerRecord = SSH) -> Finding:
    error = Unavailable(f"worker {record.name} is not well", private=private, failure=kind)
    return Finding(record=record, failure=error)


def examined(*findings: Finding, **changed: Any) -> Examination:
    steps = {finding.record.name: next_step(finding, FILE) for finding in findings if not finding.can_join}
    return Examination(expected=EXPECTED, findings=findings, steps=steps, **changed)


def cells(finding: Finding) -> dict[str, str]:
    return {label: cell(finding, EXPECTED) for label, cell in ROWS}


def test_a_machine_that_is_well() -> None:
    assert cells(well()) == {
        "can join": "yes", "transport": "ssh", "reached": "ok", "host key": "ok", "authentication": "ok",
        "executable": "ok", "Python": "3.12.3", "jax": "0.10.1", "jaxlib": "0.10.1", "Phalanx": "0.1.0", "source": "as here",
        "slots": "2 asked, 4 found", "device": "cpu", "self-test": "passed", "calls go by": "forward",
        "round trip": "0.31, p95 12.3 ms", "up": "1,250 MB/s", "down": "0.04 MB/s", "numeric class": "cdcdcdcdcdcdcdcd",
        "strays": "none",
    }  # fmt: skip


STAGES = ("reached", "host key", "authentication", "executable")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("timed_out", ["timed out", "-", "-", "-"]),
        ("unknown_key", ["ok", "unknown key", "-", "-"]),
        ("changed_key", ["ok", "CHANGED KEY", "-", "-"]),
        ("refused_key", ["ok", "ok", "refused key", "-"]),
        ("no_executable", ["ok", "ok", "ok", "no executable"]),
        ("ended", ["ok", "ok", "ok", "ended"]),
        ("forward_refused", ["ok", "ok", "ok", "ok"]),
        ("not_ready", ["ok", "ok", "ok", "ok"]),
        ("tunnel_broken", ["-", "-", "-", "-"]),
        ("late", ["-", "-", "-", "-"]),
        ("", ["-", "-", "-", "-"]),
    ],
)
def test_how_far_a_machine_was_come_to(kind: str, expected: Sequence[str]) -> None:
    finding = failed(kind)
    assert [stage(finding, name) for name in STAGES] == expected
    assert not finding.can_join


def test_a_machine_that_is_here_has_no_way_to_it() -> None:
    assert [stage(well(HERE), name) for name in STAGES] == ["this machine", "-", "-", "ok"]
    assert [stage(failed("not_phalanx", record=HERE), name) for name in STAGES] == ["this machine", "-", "-", "not phalanx"]


def test_differences_are_shown_with_what_is_here() -> None:
    other = well(handshake=handshake(jax="", python="3.11.9", source="cd" * 32), refusals=(row("jax"),))
    found = cells(other)
    assert (found["jax"], found["Python"]) == ("not installed, here 0.10.1", "3.11.9, here 3.12.3")
    assert found["source"] == "cdcdcdcdcdcd, not abababababab" and found["can join"] == "NO"


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        ((), "cuda: not found"),
        ((BackendFound(name="cuda", devices=(), reason="no driver"),), "cuda: no driver"),
        ((BackendFound(name="cuda", devices=("A100",), reason=""),), "cuda 1: 1 found"),
        ((BackendFound(name="cuda", devices=("A100", "H200"), reason=""),), "cuda 1: H200"),
    ],
)
def test_devices(backends: tuple[BackendFound, ...], expected: str) -> None:
    record = dataclasses.replace(SSH, backend="cuda", device=1, slots=1)
    assert cells(well(record, handshake=handshake(backends=backends)))["device"] == expected


def test_strays_and_what_was_not_measured() -> None:
    assert cells(well(strays=StrayReport(strays=(STRAY,))))["strays"] == "daemon 77"
    assert cells(well(strays=StrayReport(strays=(STRAY,), removed=(77,))))["strays"] == "1 removed"
    assert cells(well(strays=StrayReport(directories=1)))["strays"] == "1 directory left"
    assert cells(well(strays=StrayReport(directories=2, directories_removed=2)))["strays"] == "2 directories removed"
    assert cells(well(strays=StrayReport(reason="no")))["strays"] == "-"
    unmeasured = cells(well(link=None, link_failure="slow"))
    assert (unmeasured["round trip"], unmeasured["up"]) == ("not measured", "-")


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("jaxlib", "phalanx enroll me@secret-host --name atlas-01 --into /g/group.toml --ssh-option=-F '--ssh-option=/a b'"),
        ("protocol", "phalanx enroll"),
        ("source", "phalanx enroll"),
        ("slots", "write slots = 4 for atlas-01"),
        ("self-test", "computes known answers wrong"),
        ("device", "device = 0"),
        ("backend", "backend"),
        ("dtype", "float32"),
    ],
)
def test_a_refusal_has_one_next_step(field: str, words: str) -> None:
    assert words in next_step(well(refusals=(row(field),)), FILE)


def test_metal_is_for_macs() -> None:
    record = dataclasses.replace(SSH, backend="mps")
    refused = (row("backend"),)
    assert "no Mac" in next_step(well(record, refusals=refused), FILE)
    assert "jax-mps" in next_step(well(record, refusals=refused, handshake=handshake(platform="Darwin arm64")), FILE)


def test_the_step_of_a_failure_is_the_failures_own() -> None:
    assert next_step(failed("unknown_key", "ssh-keyscan me"), FILE) == "ssh-keyscan me"
    assert "phalanx enroll me@secret-host --name atlas-01" in next_step(failed("not_phalanx", "see"), FILE)
    assert next_step(failed("not_phalanx", "see", HERE), FILE) == "see"
    assert next_step(well(), FILE) == ""
    assert enroll_command(HERE, None, offline=True) == "phalanx enroll HOST --name laptop --offline"


def test_a_run_that_refuses_machines_gives_the_same_steps() -> None:
    here, there = dataclasses.replace(HERE, file=FILE), dataclasses.replace(SSH, file=FILE)
    text = next_steps([well(there, refusals=(row("jax"),)), well(here, refusals=(row("slots"),))])
    assert f"next for atlas-01: {next_step(well(refusals=(row('jax'),)), FILE)}" in text and "--into" in text
    assert "\nnext for laptop: write slots = " in text and text.count("next for") == 2


def test_without_a_step_the_last_words_are_told() -> None:
    finding = failed("ended", "noticed at 12:00\nthe last words of atlas-01:\n    out of memory")
    assert next_step(finding, FILE) == ""
    assert summary(examined(finding)).endswith("is not well\nnoticed at 12:00\nthe last words of atlas-01:\n    out of memory")
    stepped = failed("no_host", "try it\nnoticed at 12:00\nthe last words")
    assert summary(examined(stepped)).endswith("is not well\nnext: try it")


def test_the_table() -> None:
    text = summary(examined(well(), well(HERE), failed("unknown_key")), width=100)
    lines = text.splitlines()
    assert lines[0].split() == ["atlas-01", "laptop", "atlas-01"]
    assert lines[1].split() == ["can", "join", "yes", "yes", "NO"]
    assert max(map(len, lines)) <= 100
    assert text.endswith("worker atlas-01 is not well\nnext: do this")
    assert all(any(line.startswith(label) for line in lines) for label, _ in ROWS)


def test_a_wide_group_goes_on_below() -> None:
    names = [f"machine-{n}" for n in range(10)]
    findings = [well(dataclasses.replace(SSH, name=name)) for name in names]
    lines = summary(examined(*findings), width=100).splitlines()
    heads = [line.split() for line in lines if "machine-" in line]
    assert [name for head in heads for name in head] == names and len(heads) > 1
    assert max(map(len, lines)) <= 100


def test_long_cells_are_wrapped_and_nothing_is_lost() -> None:
    reason = "the driver is too old for this plugin: " + "wanted 570, found 535 " * 3
    record = dataclasses.replace(SSH, backend="cuda", slots=1)
    backends = (BackendFound(name="cuda", devices=(), reason=reason),)
    text = summary(examined(well(record, handshake=handshake(backends=backends))))
    column = " ".join(line[16:].strip() for line in text.splitlines())
    assert " ".join(reason.split()) in column


def test_what_keeps_the_group_out_is_said() -> None:
    found = examined(well(), problems=["too many slots"], notes=["a note"])
    assert not found.can_join and examined(well()).can_join
    assert "the group cannot start: too many slots" in summary(found) and "note: a note" in summary(found)


def test_the_document_is_json_with_nulls_and_next_steps() -> None:
    found = json.loads(json.dumps(document(examined(well(), failed("no_host")))))
    first, second = found["workers"]
    assert found["can_join"] is False and found["expected"]["jax"] == "0.10.1"
    assert first["link"]["round_trips"] == 50 and first["failure"] is None and first["strays"] == []
    assert first["handshake"]["backends"] == [{"name": "cpu", "devices": ["cpu"], "reason": ""}]
    assert (second["handshake"], second["link"], second["strays"], second["route"]) == (None, None, None, None)
    assert second["failure"] == {"kind": "no_host", "message": "worker atlas-01 is not well", "private": "do this"}
    assert second["next_step"] == "do this" and second["stages"]["reached"] == "no host"


def test_every_failure_of_a_start_has_a_stage_or_comes_later() -> None:
    attempt = pytest.importorskip("phalanx_coordinator.ssh.attempt")
    staged = {kind for kinds in doctor_table._STAGES.values() for kind in kinds}
    anywhere = {"tunnel_stalled", "tunnel_broken", "late", "silent"}
    assert staged | doctor_table._LATER | anywhere == set(get_args(attempt.FailureKind)) | {"late"}


# Measuring


def test_quantiles_are_measured_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([float(n) for n in range(1, 101)], 0.95) == 95.0
    assert quantile([7.0], 0.95) == 7.0


def test_transfers_grow_until_one_is_long_enough() -> None:
    size: int | None = 64 << 10
    seen = []
    while size is not None:
        seen.append(size)
        size = next_size(size, size / 1e9)
    assert seen == sorted(seen) and seen[-1] == LARGEST and len(seen) < 9
    assert next_size(64 << 10, LONG_ENOUGH) is None
    assert next_size(100, 0.0) == 800


def test_a_rate_leaves_out_one_round_trip_but_not_everything() -> None:
    assert rate(1000, 1.5, 0.5) == 1000.0
    assert rate(1000, 1.0, 0.9) == 2000.0
    assert [megabytes(r) for r in (2.5e9, 12.34e6, 9.994e6)] == ["2,500 MB/s", "12 MB/s", "9.99 MB/s"]


# Strays


def test_one_question_a_machine() -> None:
    again = dataclasses.replace(SSH, name="atlas-02", device=1, backend="cuda")
    assert place_of(SSH) == place_of(again) != place_of(HERE)
    assert place_of(HERE) == place_of(WorkerRecord(name="x", transport="socket"))
    assert strays_command(HERE, True)[1:] == ["-P", "-m", "phalanx_worker.strays", "--json", "--clean"]
    command = strays_command(SSH, False)
    assert command[0] == "ssh" and "/opt/p/bin/python -P -m phalanx_worker.strays --json" in command[-1]


def test_the_answer_is_found_among_what_a_profile_prints() -> None:
    values = {"strays": [dataclasses.asdict(STRAY)], "removed": [77], "directories": 2, "directories_removed": 1}
    line = json.dumps(values).encode()
    report = read_report(b"Welcome {}\n[1]\n" + line + b"\nbye\n", 0, "atlas-01")
    assert (report.strays, report.removed, report.left, report.reason) == ((STRAY,), (77,), (), "")
    assert (report.directories, report.directories_removed, report.clean) == (2, 1, False)
    assert read_report(b"no module\n", 1, "a").reason == "a could not say whether workers are left over (exit status 1)"
    assert read_report(b'{"strays": [{"pid": 1}], "removed": []}', 0, "a").reason
