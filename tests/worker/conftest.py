"""A daemon for each file of tests that needs one."""

from collections.abc import Iterator

import pytest

from tests.worker import builders
from tests.worker.builders import Problem
from tests.worker.daemons import Daemon, assert_right

PROXY = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "ALL_PROXY")}
FOREIGN = {"XLA_FLAGS": "--xla_no_such_flag=1", "JAX_ENABLE_X64": "0", "JAX_PLATFORMS": "cuda", "NPROC": "8"}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for a whole file, in a hostile environment; its client has the same proxies."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PROXY.items():
            patch.setenv(name, value)
        found = Daemon(environment=FOREIGN)
        yield found
        found.end()


@pytest.fixture(scope="module")
def served() -> Problem:
    """Updates of 26 and 24 rows: 7 blocks, the last with 2 rows, then 6."""
    return builders.make_problem(rows=50, batch=26)


@pytest.fixture
def opened(daemon: Daemon, served: Problem) -> Iterator[Daemon]:
    """The daemon with run 1 open; whatever a test did, a correct update follows and gives the right bits."""
    daemon.open(served)
    yield daemon
    assert_right(daemon, served, 0, 1, 6)
    daemon.close_run()
