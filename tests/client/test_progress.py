"""The pace of completed work, and how it is shown; the time is given, nobody waits."""

import io
from collections.abc import Sequence

import pytest

from phalanx.progress import N_A, PlainLines, amount, duration, pieces, shown
from phalanx_proto.jobs import Progress
from phalanx_proto.pace import Pace


def pace_of(seen: Sequence[tuple[float, int]], window: float = 20.0) -> Pace:
    pace = Pace(window)
    for now, done in seen:
        pace.observe(done, now)
    return pace


@pytest.mark.parametrize("seen", [[], [(3.0, 5)], [(3.0, 5), (9.0, 5)], [(3.0, 5), (3.0, 8)]])
def test_nothing_is_known_until_work_was_seen_to_be_completed(seen: list[tuple[float, int]]) -> None:
    pace = pace_of(seen)
    assert pace.rate is None
    assert pace.remaining(100) is None


def test_the_pace_is_of_completed_work() -> None:
    pace = pace_of([(10.0, 0), (12.0, 30), (14.0, 60)])
    assert pace.rate == 15.0
    assert pace.remaining(90) == 2.0
    assert pace.remaining(60) == 0.0


def test_time_without_completed_work_changes_nothing() -> None:
    pace = pace_of([(0.0, 0), (2.0, 10), (50.0, 10)])
    assert pace.rate == 5.0


def test_what_is_older_than_the_window_is_forgotten() -> None:
    pace = pace_of([(0.0, 0), (10.0, 100), (20.0, 300), (30.0, 500)], window=10.0)
    assert pace.rate == 20.0


def test_one_step_longer_than_the_window_is_still_a_pace() -> None:
    assert pace_of([(0.0, 0), (100.0, 50)], window=10.0).rate == 0.5


def test_a_new_count_begins_a_new_pace() -> None:
    pace = pace_of([(0.0, 0), (1.0, 100), (2.0, 10)])
    assert pace.rate is None
    pace.observe(15, 3.0)
    assert pace.rate == 5.0


def test_thousands_of_reports_a_second_are_kept_as_a_few() -> None:
    pace = pace_of([(update / 8192, update) for update in range(8193)])
    assert len(pace._seen) < 30
    assert pace.rate == 8192.0


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7, "7"),
        (3.26, "3.3"),
        (99_999, "99,999"),
        (123_456, "123.5k"),
        (5e6, "5.0M"),
        (10**9, "1.0G"),
        (10**12, "1.0T"),
    ],
)
def test_amounts_are_short(number: float, text: str) -> None:
    assert amount(number) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, N_A), (0.4, "0:00:00"), (59.6, "0:01:00"), (36_610.0, "10:10:10")])
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_the_texts_of_one_moment() -> None:
    progress = Progress(phase="updates", done=40, total=120, loss=0.5, validation_loss=0.25)
    pace = pace_of([(0.0, 0), (4.0, 40)])
    assert pieces(progress, pace) == ["40/120 updates", "10/s", "ETA 0:00:08", "loss 0.5", "validation 0.25"]
    assert pieces(progress, Pace()) == ["40/120 updates", "loss 0.5", "validation 0.25"]
    assert pieces(Progress(phase="opening"), pace) == []


def test_a_plain_line_comes_now_and_then() -> None:
    stream = io.StringIO()
    lines = PlainLines(stream, every=5.0)
    lines._next = 5.0
    lines.tell(Progress(phase="opening"), 0.0)
    lines.tell(Progress(phase="updates", done=10, total=100), 4.0)
    assert stream.getvalue() == ""
    lines.tell(Progress(phase="updates", done=20, total=100), 6.0)
    lines.tell(Progress(phase="updates", done=30, total=100), 8.0)
    assert stream.getvalue() == "phalanx: 20/100 updates, 5/s, ETA 0:00:16\n"
    lines.tell(Progress(phase="closing"), 12.0)
    assert stream.getvalue().splitlines()[1:] == ["phalanx: closing"]


def test_quiet_shows_nothing() -> None:
    stream = io.StringIO()
    with shown(True, stream) as listener:
        listener(Progress(phase="updates", done=1, total=2))
    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar() -> None:
    stream = Terminal()
    with shown(False, stream) as listener:
        listener(Progress(phase="updates", done=40, total=120, loss=0.5))
    assert "updates" in stream.getvalue()
    assert "40/120" in stream.getvalue()
    assert "loss 0.5" in stream.getvalue()
