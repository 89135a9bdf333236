import queue
from collections.abc import Iterator

import pytest

from phalanx_worker import watchdog
from phalanx_worker.watchdog import Watchdog

Ends = queue.Queue[str]
QUIET = 0.1


@pytest.fixture
def ends() -> Ends:
    return queue.Queue()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "TICK", 0.005)


def started(deadline: float, ends: Ends) -> Iterator[Watchdog]:
    dog = Watchdog(deadline, ends.put)
    dog.start()
    yield dog
    dog.stop()


@pytest.fixture
def strict(ends: Ends) -> Iterator[Watchdog]:
    yield from started(0.02, ends)


@pytest.fixture
def patient(ends: Ends) -> Iterator[Watchdog]:
    yield from started(3600.0, ends)


def test_work_that_overruns_ends_the_process_with_a_reason(strict: Watchdog, ends: Ends) -> None:
    with strict.watching("nodes"):
        reason = ends.get(timeout=30)
    assert "overran its deadline of 0 s in 'nodes'" in reason


def test_it_ends_the_process_once(strict: Watchdog, ends: Ends) -> None:
    with strict.watching("nodes"):
        ends.get(timeout=30)
        with pytest.raises(queue.Empty):
            ends.get(timeout=QUIET)


def test_work_in_time_is_left_alone(patient: Watchdog, ends: Ends) -> None:
    with patient.watching("open"), pytest.raises(queue.Empty):
        ends.get(timeout=QUIET)


def test_idle_time_is_not_work(strict: Watchdog, ends: Ends) -> None:
    with strict.watching("a"):
        pass
    with pytest.raises(queue.Empty):
        ends.get(timeout=QUIET)


def test_failed_work_is_no_longer_watched(strict: Watchdog, ends: Ends) -> None:
    with pytest.raises(ValueError, match="x"), strict.watching("a"):
        raise ValueError("x")
    with pytest.raises(queue.Empty):
        ends.get(timeout=QUIET)


def test_a_stopped_watchdog_does_not_bark(strict: Watchdog, ends: Ends) -> None:
    strict.stop()
    with strict.watching("a"), pytest.raises(queue.Empty):
        ends.get(timeout=QUIET)
