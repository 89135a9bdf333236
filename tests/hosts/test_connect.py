"""A client of a coordinator service on another machine, through a real ssh."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import phalanx
from phalanx_proto.errors import Unavailable
from tests.hosts.lab import Lab

TIMEOUT = 200
COMMAND = str(Path(sys.executable).with_name("phalanx"))


def options(lab: Lab) -> tuple[str, ...]:
    return ("-F", str(lab.config))


@contextlib.contextmanager
def serving(lab: Lab) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A service there, in the runtime directory of who logs in; gives its socket, and the options of ssh."""
    kept = f"/tmp/phalanx-{secrets.token_hex(8)}"
    variables = f"PHALANX_TEST_RUN={os.environ.get('PHALANX_TEST_RUN', '')} XDG_RUNTIME_DIR={kept}"
    with lab.server("alpha", SetEnv=variables) as there:
        login = ["ssh", *there, *options(lab), "-T", "alpha"]
        far = f"exec {COMMAND} serve --json --slots 1 --directory {kept}/kept"
        with subprocess.Popen([*login, far], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            try:
                yield ready["socket"], (*there, *options(lab))
            finally:
                subprocess.run([*login, f"kill {ready['pid']}"], check=False, timeout=TIMEOUT)
                process.wait(TIMEOUT)
                subprocess.run([*login, f"rm -rf {kept}"], check=False, timeout=TIMEOUT)


def test_a_job_is_submitted_watched_and_evaluated_over_there(lab: Lab) -> None:
    parts = phalanx.datasets.iris().partition(seed=1)
    model = phalanx.classifier(phalanx.mlp(4, [8], 3, seed=42), standardize=True)
    config = phalanx.training(epochs=5, batch=32, rate=0.01)
    with serving(lab) as (socket, ssh):
        with phalanx.connect("ssh://alpha", phalanx=COMMAND, ssh_options=ssh) as client:
            job = client.submit_fit(model, parts.train, config, execution=phalanx.local(1))
            assert [status.state for status in job.watch()][-1] == "COMPLETE"
            fitted = job.result(TIMEOUT)
            assert isinstance(fitted, phalanx.Fitted)
            digest, score = fitted.digest, fitted.evaluate(parts.train)
        with phalanx.connect(f"ssh://alpha{socket}", ssh_options=ssh) as client:
            again = client.job(job.id).result(TIMEOUT)
            assert isinstance(again, phalanx.Fitted)
            assert (again.digest, again.evaluate(parts.train)) == (digest, score)
    assert [p.cmdline() for p in psutil.Process().children(recursive=True) if p.name() == "ssh"] == []


def test_without_a_service_there_the_next_step_is_named(lab: Lab) -> None:
    with pytest.raises(Unavailable, match="start one there with: phalanx serve"):
        phalanx.connect("ssh://alpha/tmp/none", ssh_options=options(lab))
    with pytest.raises(Unavailable, match="'/no/phalanx serve --where --json' is not found on the other machine"):
        phalanx.connect("ssh://alpha", phalanx="/no/phalanx", ssh_options=options(lab))
    with pytest.raises(Unavailable, match="exit status 255"):
        phalanx.connect("ssh://nobody-at-all", ssh_options=options(lab))
