"""Enrolling real hosts over a real sshd: whole installations, which take minutes; the order of things is tested elsewhere."""

import asyncio
import sys
from pathlib import Path

import pytest

import phalanx
from phalanx_coordinator.cluster.reading import read_cluster
from phalanx_coordinator.enroll import enroll
from phalanx_coordinator.enroll.enroll import Enrolled
from phalanx_coordinator.enroll.plan import Enrolment
from phalanx_proto.errors import PhalanxError
from phalanx_worker.inventory import inventory
from tests.hosts.lab import Lab, open_lab
from tests.hosts.workers import DEADLINES

PYTHON = f"{sys.base_prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"


def run(asked: Enrolment) -> tuple[Enrolled, list[str]]:
    told: list[str] = []
    work = enroll.enroll(asked, inventory(False), deadlines=DEADLINES, log=lambda worker, line: None, tell=told.append)
    return asyncio.run(work), told


def test_a_machine_is_looked_at_and_left_as_it_was(lab: Lab, tmp_path: Path) -> None:
    directory = str(tmp_path / "p") if not lab.isolated else "/home/ada/p"
    asked = Enrolment(
        host="alpha", into=tmp_path / "group.toml", python=PYTHON, directory=directory, dry_run=True,
        ssh_options=("-F", str(lab.config)),
    )  # fmt: skip
    found, _ = run(asked)
    assert found.steps[0].startswith(f"make an environment in {directory}")
    assert not (tmp_path / "group.toml").exists()


def test_a_host_that_is_not_trusted_is_told_with_its_next_step(lab: Lab, tmp_path: Path) -> None:
    nobody = tmp_path / "known_hosts"
    nobody.touch()
    options = ("-o", f"UserKnownHostsFile={nobody}", "-F", str(lab.config))
    with pytest.raises(PhalanxError) as caught:
        run(Enrolment(host="alpha", ssh_options=options))
    assert caught.value.details["failure"] == "unknown_key" and "ssh" in caught.value.private


@pytest.mark.parametrize(
    ("directory", "failure"),
    [("/tmp/full/p", "disk_full"), ("/root/p", "not_writable"), ("/home", "not_ours"), ("/home/eve/p", "not_writable")],
)
def test_a_place_that_cannot_be_used(apart: Lab, tmp_path: Path, directory: str, failure: str) -> None:
    path = tmp_path / "group.toml"
    with pytest.raises(PhalanxError) as caught:
        run(Enrolment(host="alpha", into=path, python=PYTHON, directory=directory, ssh_options=("-F", str(apart.config))))
    assert caught.value.details["failure"] == failure and "--directory" in caught.value.private
    assert directory not in caught.value.message and not path.exists()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_machine_without_an_index_gets_its_wheels_sent(apart: Lab, tmp_path: Path, fresh: None) -> None:
    """A whole life: no index, wheels sent along, a run over it, again, and out."""
    machine = apart.hosts["alpha"].machine
    assert machine is not None
    path = tmp_path / "group.toml"
    asked = Enrolment(host="alpha", into=path, python=PYTHON, slots=1, ssh_options=("-F", str(apart.config)))
    with pytest.raises(PhalanxError) as caught:
        run(asked)
    assert caught.value.details["failure"] == "no_index" and "--offline" in caught.value.private
    assert not path.exists()

    found, told = run(Enrolment(**{**vars(asked), "offline": True}))
    record = read_cluster(path).workers[0]
    assert record == found.record and record.python == "/home/ada/.local/share/phalanx/venv/bin/python"
    assert any(step.startswith("receiving ") for step in told)
    assert found.examination is not None and found.examination.can_join
    simulation = phalanx.monte_carlo(samples=1_000_000, seed=42, execution=phalanx.cluster(path))
    assert simulation.hits == 785_856
    phalanx.shutdown()

    again, told = run(Enrolment(**{**vars(asked), "offline": True, "slots": None}))
    assert again.record == record and told[0].startswith("will renew the environment")
    assert len(read_cluster(path).workers) == 1

    assert asyncio.run(enroll.remove("alpha", path, told.append)).environment
    assert not machine.path("/home/ada/.local/share/phalanx").exists()
    assert "alpha" not in path.read_text()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_machine_installs_from_its_own_index(tmp_path: Path) -> None:
    """On loopback, since the machines of the tests reach no network."""
    with open_lab(isolated=False) as loopback:
        asked = Enrolment(
            host="alpha", into=tmp_path / "group.toml", python=PYTHON, slots=1, directory=str(tmp_path / "p"),
            ssh_options=("-F", str(loopback.config)),
        )  # fmt: skip
        try:
            found, _ = run(asked)
        except PhalanxError as error:
            if error.details.get("failure") == "no_index":
                pytest.skip("this machine reaches no package index")
            raise
        assert found.examination is not None and found.examination.can_join
        assert asyncio.run(enroll.remove("alpha", tmp_path / "group.toml", lambda text: None)).environment
        assert not (tmp_path / "p").exists()
