"""Who may come back, and what is said of those who do not. What a run makes of it is in ``tests/faults``."""

from phalanx_coordinator.members.membership import _told, is_permanent
from phalanx_proto.errors import AdmissionRefused, Unavailable
from phalanx_proto.handshake import NOT_RUN, PASSED


def refusal(*rows: tuple[str, str, str]) -> AdmissionRefused:
    return AdmissionRefused(
        [{"worker": "b", "field": field, "wanted": wanted, "found": found} for field, wanted, found in rows]
    )


def test_a_self_test_that_was_not_run_refuses_nobody_for_good() -> None:
    unknown = ("self-test", PASSED, f"{NOT_RUN}: the inspector was ended by SIGKILL")
    assert not is_permanent(refusal(unknown))
    assert is_permanent(refusal(("self-test", PASSED, "self-test 'sum of a broadcast' failed: wanted 2, found 1")))
    assert is_permanent(refusal(unknown, ("jax", "0.10.1", "0.10.0")))
    assert is_permanent(Unavailable("worker b", failure="noisy_profile"))
    assert not is_permanent(Unavailable("worker b", failure="timed_out"))


def test_a_table_is_told_on_one_line() -> None:
    error = refusal(("jax", "1", "2"), ("jaxlib", "1", "2"))
    assert _told(error) == "these workers cannot join: b: jax: wanted 1, found 2; b: jaxlib: wanted 1, found 2"
    assert _told(Unavailable("one\n  two")) == "one; two"
    assert _told(Unavailable("")) == ""
