"""The command line without engines: what is parsed, what is refused, what is passed on, and the exit codes."""

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from phalanx import api
from phalanx.cli import app
from phalanx.commands import fit, regression, simulate
from phalanx.console import EXIT_CODES, Ended
from phalanx_proto import errors
from phalanx_proto.errors import PhalanxError
from phalanx_proto.execution import Cluster, Device, Local
from phalanx_proto.experiment import Dense
from phalanx_proto.job_status import JobStatus
from phalanx_proto.jobs import MemberStatus
from phalanx_proto.version import VERSION


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="phalanx")


class Called(Exception):
    """Carries what the API was called with out of a command."""

    def __init__(self, values: tuple[Any, ...], named: dict[str, Any]) -> None:
        super().__init__()
        self.values, self.named = values, named


class Api:
    """Stands in for ``phalanx.api``: remembers a call and ends the command there, or raises what it is told."""

    def __init__(self) -> None:
        self.calls: list[Called] = []
        self.error: BaseException = PhalanxError("that is all")

    def _call(self, *values: Any, **named: Any) -> Any:
        self.calls.append(Called(values, named))
        raise self.error

    fit = monte_carlo = regression = _call

    @property
    def named(self) -> dict[str, Any]:
        (call,) = self.calls
        return call.named


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Api:
    stand_in = Api()
    for module in (fit, simulate, regression):
        monkeypatch.setattr(module, "api", stand_in)
    return stand_in


def problems(result: Result) -> list[str]:
    """The lines of an error, without their marks."""
    assert result.stdout == ""
    first, *rest = result.stderr.removeprefix("error: ").splitlines()
    return [line.strip().removeprefix("- ") for line in rest] if first.endswith("problems:") else [first, *rest]


def test_the_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"phalanx {VERSION}\n")


@pytest.mark.parametrize("command", [[], ["fit"], ["simulate"], ["regression"]])
def test_the_help_tells_the_exit_codes(command: list[str]) -> None:
    text = " ".join(run(*command, "--help").stdout.split())
    assert all(f"{code} {meaning[:30]}" in text for code, meaning in EXIT_CODES.items())


def test_every_error_has_an_exit_code_that_is_told() -> None:
    family = [PhalanxError, *vars(errors).values()]
    codes = {kind.exit_code for kind in family if isinstance(kind, type) and issubclass(kind, PhalanxError)}
    assert codes <= set(EXIT_CODES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit"], "Missing option '--data'"),
        (["fit", "--data", "iris", "--optimizer", "lion"], "Invalid value for '--optimizer'"),
        (["fit", "--data", "iris", "--bogus"], "No such option: --bogus"),
        (["simulate", "--samples", "many"], "Invalid value for '--samples': 'many' is not a whole number"),
        (["train"], "No such command 'train'"),
        (["--bogus"], "No such option: --bogus"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {message}")
    assert "--help" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("text", ["10000000", "10_000_000", "1e7", "1E+7", "0.1e8", "10000000.0"])
def test_a_whole_number_is_read_where_it_is_exact(asked: Api, text: str) -> None:
    run("simulate", "--samples", text)
    assert asked.named["samples"] == 10_000_000


@pytest.mark.parametrize("text", ["1.5", "1e-3", "nan", "inf", "1e999999999", "0x10", "", "1 000"])
def test_what_is_not_a_whole_number_is_refused(asked: Api, text: str) -> None:
    result = run("simulate", "--samples", text)
    assert result.exit_code == 2
    assert "is not a whole number" in result.stderr
    assert asked.calls == []


def test_a_simulation_is_passed_on(asked: Api, tmp_path: Path) -> None:
    run("simulate", "--samples", "100", "--seed", "7", "--workers", "2", "--chunk", "1e1", "--output", str(tmp_path / "job"))
    assert {**asked.named, "progress": None} == {
        "samples": 100, "seed": 7, "execution": Local(workers=2, chunk=10), "on_loss": "abort",
        "checkpoint_every": None, "output": tmp_path / "job",
        "progress": None,
    }  # fmt: skip


def test_a_regression_is_passed_on(asked: Api) -> None:
    run("regression", "--samples", "1e3", "--steps", "5", "--rate", "0.25", "--dtype", "float32")
    named = {name: asked.named[name] for name in ("samples", "steps", "rate", "seed", "execution")}
    assert named == {"samples": 1000, "steps": 5, "rate": 0.25, "seed": 42, "execution": Local(dtype="float32")}


@pytest.mark.parametrize(
    ("arguments", "execution"),
    [
        ([], Local()),
        (["--workers", "3", "--dtype", "float32"], Local(workers=3, dtype="float32")),
        (["--device", "cuda"], Device(backend="cuda")),
        (["--device", "mps", "--dtype", "float32"], Device(backend="mps", dtype="float32")),
        (["--device", "cpu", "--workers", "2"], Local(workers=2)),
        (["--cluster", "group.toml"], Cluster(file=Path("group.toml"))),
    ],
)
def test_the_place(asked: Api, arguments: list[str], execution: object) -> None:
    run("fit", "--data", "iris", *arguments)
    assert asked.named["execution"] == execution


def test_contradictions_are_told_at_once(asked: Api) -> None:
    result = run("fit", "--data", "iris", "--cluster", "g.toml", "--workers", "2", "--device", "cuda", "--dtype", "float32")
    assert result.exit_code == 2
    assert asked.calls == []
    assert [" ".join(problem.split()[:3]) for problem in problems(result)] == [
        "--cluster and --workers", "--cluster and --device", "--cluster and --dtype", "--workers counts CPU",
    ]  # fmt: skip


@pytest.mark.parametrize("command", [["simulate", "--samples", "10"], ["regression"]])
def test_contradictions_are_refused_by_every_command(asked: Api, command: list[str]) -> None:
    result = run(*command, "--cluster", "g.toml", "--workers", "2")
    assert result.exit_code == 2
    assert asked.calls == []


def test_all_that_is_wrong_with_a_fit_is_told_at_once(asked: Api) -> None:
    options = ["--workers", "-1", "--epochs", "0", "--rate", "-1", "--hidden", "4,x", "--validation", "0.7", "--test", "0.7"]
    result = run("fit", "--data", "iris", *options)
    assert result.exit_code == 2
    assert [problem.split()[0] for problem in problems(result)] == ["workers", "validation", "epochs", "rate", "--hidden:"]


def test_presets_follow_the_data(asked: Api) -> None:
    run("fit", "--data", "iris")
    model, train, config = asked.calls[0].values
    assert [layer.outputs for layer in model.network.spec.dense] == [8, 3]
    assert (model.standardize, config.epochs, config.batch, config.rate) == (True, 40, 32, 0.01)
    assert (len(train), len(config.validation), len(asked.named["test"])) == (90, 30, 30)
    assert (train.role, config.validation.role, asked.named["test"].role) == ("train", "validation", "test")


@pytest.mark.parametrize(
    ("options", "widths"),
    [
        (["--hidden", "5,6"], [5, 6, 3]),
        (["--hidden", "5", "--hidden", "6"], [5, 6, 3]),
        (["--hidden", "none"], [3]),
    ],
)
def test_hidden_layers(asked: Api, options: list[str], widths: list[int]) -> None:
    run("fit", "--data", "iris", *options)
    assert [layer.outputs for layer in asked.calls[0].values[0].network.spec.dense] == widths


def test_the_settings_of_a_fit_are_passed_on(asked: Api) -> None:
    options = (
        "--no-standardize --activation relu --loss mse --optimizer momentum --epochs 3 --batch 1e1 --rate 0.5 --clip 2 "
        "--block 5 --keep-best --seed 9 --validation 0.1 --test 0 --reproducible bitwise --on-loss rebalance "
        "--checkpoint-every 1e3"
    )
    run("fit", "--data", "iris", *options.split())
    model, _, config = asked.calls[0].values
    assert (model.standardize, model.loss, model.optimizer, model.clip) == (False, "mse", "momentum", 2.0)
    assert model.network.spec.layers == (Dense(inputs=4, outputs=8), "relu", Dense(inputs=8, outputs=3))
    assert (config.epochs, config.batch, config.rate, config.block) == (3, 10, 0.5, 5)
    assert (config.keep_best, config.seed, model.network.seed) == (True, 9, 9)
    assert asked.named["test"] is None
    assert asked.named["reproducible"] == "bitwise"
    assert asked.named["on_loss"] == "rebalance"
    assert asked.named["checkpoint_every"] == 1000


def test_synthetic_data_take_their_shape(asked: Api) -> None:
    run("fit", "--data", "synthetic", "--rows", "500", "--inputs", "6", "--classes", "2", "--loss", "logistic")
    model, train, _ = asked.calls[0].values
    assert train.x.shape == (300, 6)
    assert model.network.spec.outputs == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["synthetic", "--rows", "0"], "rows must be at least 1, not 0"),
        (["iris", "--rows", "10"], "--rows is for --data synthetic; iris has its own"),
        (["irs"], "--data must be iris, digits, synthetic or the path of an .npz file with arrays x and y, not 'irs'"),
        (["nowhere.npz"], "there is no file nowhere.npz"),
        (["iris", "--loss", "logistic"], "--loss logistic is for 2 classes, and these data have 3"),
        (
            ["iris", "--validation", "0", "--keep-best"],
            "keep_best needs validation rows to judge by: give validation=parts.validation",
        ),
    ],
)
def test_data_that_cannot_be_used(asked: Api, arguments: list[str], message: str) -> None:
    result = run("fit", "--data", *arguments)
    assert result.exit_code == 2
    assert problems(result) == [message]
    assert asked.calls == []


def test_float_targets_make_a_regression(asked: Api, tmp_path: Path) -> None:
    file = tmp_path / "values.npz"
    np.savez(file, x=np.arange(40.0).reshape(20, 2), y=np.arange(20.0))
    run("fit", "--data", str(file), "--hidden", "3")
    model = asked.calls[0].values[0]
    assert (model.float_targets, model.loss, model.network.spec.outputs) == (True, "mse", 1)
    result = run("fit", "--data", str(file), "--loss", "cross_entropy")
    assert problems(result) == ["--loss cross_entropy is for labels, and these data have float targets: use --loss mse"]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.InvalidExperiment(["one", "two"]), 2, "error: 2 problems:\n  - one\n  - two\n"),
        (errors.Unavailable("no such device"), 3, "error: no such device\n"),
        (errors.WorkerLost("worker a was lost"), 4, "error: worker a was lost\n"),
        (errors.Unavailable("a: refused", private="try: ssh ada@a true"), 3, "error: a: refused\ntry: ssh ada@a true\n"),
        (errors.NonFinite("update 3"), 5, "error: update 3\n"),
        (errors.Cancelled("cancelled"), 130, "error: cancelled\n"),
        (KeyboardInterrupt(), 130, "error: ended by SIGINT; everything that was started has ended\n"),
        (Ended(signal.SIGTERM), 143, "error: ended by SIGTERM; everything that was started has ended\n"),
    ],
)
def test_errors_become_exit_codes(asked: Api, error: BaseException, code: int, message: str) -> None:
    asked.error = error
    result = run("simulate", "--samples", "10", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", message)


def test_an_unforeseen_error_is_reported_without_a_page(asked: Api) -> None:
    asked.error = ZeroDivisionError("by nothing")
    result = run("simulate", "--samples", "10", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    first, *frames, last = result.stderr.splitlines()
    assert first == "error: unforeseen ZeroDivisionError: by nothing"
    assert "test_cli.py" in frames[-1]
    assert "report" in last


def test_the_inventory_is_shown_or_printed_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    class Machine:
        def to_dict(self) -> dict[str, Any]:
            return {"slots": 2}

        def summary(self) -> str:
            return "slots 2"

    monkeypatch.setattr(api, "inventory", Machine)
    assert run("inventory").stdout == "slots 2\n"
    assert json.loads(run("inventory", "--json").stdout) == {"slots": 2}


def test_a_worker_becomes_the_workers_program(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, arguments: called.append(arguments))
    run("worker", "--slots", "2", "--help")
    assert called[0][1:] == ["-m", "phalanx_worker", "--slots", "2", "--help"]


def test_a_job_in_the_background_needs_a_directory(asked: Api) -> None:
    for command in (["fit", "--data", "iris"], ["simulate", "--samples", "10"], ["regression", "--samples", "10"]):
        result = run(*command, "--background")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--background needs --output DIR" in result.stderr
    assert asked.calls == []


@pytest.mark.parametrize("command", ["status", "logs", "cancel", "resume"])
def test_commands_of_a_job_say_what_is_no_job(command: str, tmp_path: Path) -> None:
    result = run(command, "--job", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {tmp_path} is not a job directory: it has no run-manifest.json")
    missing = run(command, "--job", str(tmp_path / "none"))
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "cannot be read: No such file or directory; phalanx jobs lists yours" in missing.stderr


def make_job(folder: Path, name: str, **changed: Any) -> Path:
    """The directory of a job that somebody else has written."""
    status = JobStatus(job=name, kind="fit", state="COMPLETE", done=9, total=9, update=9, updates=9, epoch=2, loss=0.125)
    (folder / name).mkdir()
    (folder / name / "run-manifest.json").write_text('{"format": 1}')
    (folder / name / "status.json").write_text(json.dumps(dataclasses.replace(status, **changed).to_document()))
    return folder / name


def test_jobs_are_listed_and_what_is_damaged_is_named(tmp_path: Path) -> None:
    make_job(tmp_path, "a")
    make_job(tmp_path, "b", state="RUNNING")
    (make_job(tmp_path, "c") / "status.json").write_text("{")
    (tmp_path / "nothing").mkdir()
    result = run("jobs", str(tmp_path))
    assert (result.exit_code, [line.split()[:3] for line in result.stdout.splitlines()]) == (
        0, [["job", "kind", "state"], ["a", "fit", "COMPLETE"], ["b", "fit", "COORDINATOR_OFFLINE"]],
    )  # fmt: skip
    assert "phalanx: not listed: status.json of" in result.stderr
    found = json.loads(run("jobs", str(tmp_path), "--json").stdout)["jobs"]
    assert [(job["job"], job["state"], job["directory"]) for job in found] == [
        ("a", "COMPLETE", str(tmp_path / "a")), ("b", "COORDINATOR_OFFLINE", str(tmp_path / "b")),
    ]  # fmt: skip


def test_a_status_has_all_its_fields_and_n_a_is_null(tmp_path: Path) -> None:
    job = make_job(tmp_path, "a", members=(MemberStatus(name="m", state="lost"),))
    found = json.loads(run("status", "--job", str(job), "--json").stdout)
    named = ("job", "kind", "state", "pid", "reason", "update", "updates", "epoch", "loss", "seconds", "eta")
    assert [found[name] for name in named] == ["a", "fit", "COMPLETE", None, None, 9, 9, 2, 0.125, 0.0, None]
    assert found["members"] == [{"name": "m", "state": "lost", "rows": None, "latency": None, "reason": None}]
    assert "member      m: lost, N/A, latency N/A" in run("status", "--job", str(job)).stdout
    job = make_job(tmp_path, "b", members=(MemberStatus(name="m", state="starting"),))
    assert "member      m: starting\n" in run("status", "--job", str(job)).stdout
    watched = run("status", "--watch", "--job", str(job)).stdout
    assert watched.splitlines()[0] == "COMPLETE, 9/9 updates, loss 0.125"
