"""One group of hosts for all tests here."""

from collections.abc import Generator, Iterator

import pytest

import phalanx
from tests.hosts.lab import Lab, no_hosts, open_lab


@pytest.fixture(scope="session")
def hosts() -> Iterator[Lab]:
    """Real hosts behind real sshds."""
    if reason := no_hosts():
        pytest.skip(reason)
    with open_lab() as found:
        yield found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what the sshds said last."""
    report = yield
    found = getattr(item, "funcargs", {}).get("hosts")
    if report.failed and isinstance(found, Lab) and found.folder.is_dir():
        report.sections.append(("what the sshds said last", found.logs()))
    return report


@pytest.fixture
def lab(hosts: Lab) -> Iterator[Lab]:
    """The hosts, on which the test leaves nothing."""
    assert hosts.leftovers() == {}
    yield hosts
    left = hosts.leftovers()
    assert left == {}, left


@pytest.fixture
def apart(lab: Lab) -> Lab:
    """The hosts, where they are machines of their own."""
    if not lab.isolated:
        pytest.skip("the hosts are one sshd on loopback: this needs root and network namespaces")
    return lab


@pytest.fixture
def fresh() -> Iterator[None]:
    """A coordinator with nothing warm, of which nothing is left afterwards."""
    phalanx.shutdown()
    yield
    phalanx.shutdown()
