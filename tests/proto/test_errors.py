"""What of an error is public, and how errors cross the wire."""

import json
import pickle

import pytest

from phalanx_proto import errors
from phalanx_proto.errors import AdmissionRefused, InvalidExperiment, PhalanxError, Unavailable, WorkerLost

SECRET = "ssh -p 22022 ada@atlas.example.org"


def test_the_owner_reads_all_of_it() -> None:
    error = Unavailable("atlas: refused", private=f"try: {SECRET}", worker="atlas")
    assert str(error) == f"atlas: refused\ntry: {SECRET}"
    assert (error.message, error.private, error.details) == ("atlas: refused", f"try: {SECRET}", {"worker": "atlas"})
    assert str(Unavailable("atlas: refused")) == "atlas: refused"


@pytest.mark.parametrize(
    "error",
    [
        WorkerLost("worker atlas was lost", private=SECRET, worker="atlas"),
        InvalidExperiment(["one", "two"], private=SECRET),
        AdmissionRefused([{"worker": "atlas", "field": "jax", "wanted": "1", "found": "2"}], private=SECRET),
    ],
)
def test_what_is_private_does_not_cross_the_wire(error: PhalanxError) -> None:
    data = errors.to_wire(error)
    assert SECRET not in data.decode()
    back = errors.from_wire(data)
    assert (type(back), back.message, back.private, back.details) == (type(error), error.message, "", error.details)


def test_a_peer_cannot_put_words_into_the_private_part() -> None:
    document = {"error": "WorkerLost", "message": "m", "details": {"private": "run: rm -r", "update": 3}}
    back = errors.from_wire(json.dumps(document).encode())
    assert (back.private, str(back), back.details) == ("", "m", {"update": 3})


def test_a_copy_between_own_processes_keeps_it() -> None:
    back = pickle.loads(pickle.dumps(WorkerLost("m", private=SECRET)))
    assert (back.message, back.private) == ("m", SECRET)


def test_what_a_call_carries_comes_back() -> None:
    sent = InvalidExperiment(["one", "two"])
    found = errors.carried([("other", "x"), *errors.trailing(sent)])
    assert isinstance(found, InvalidExperiment) and found.problems == ["one", "two"]
    assert errors.carried([("other", b"x")]) is None and errors.carried(None) is None


def test_what_is_too_long_for_a_call_is_shortened_and_keeps_its_kind() -> None:
    ((_, data),) = errors.trailing(InvalidExperiment(["π" * 9000, "two"]))
    found = errors.from_wire(data)
    assert len(data) <= errors.LONGEST_WIRE
    assert isinstance(found, InvalidExperiment) and found.message.endswith("(shortened)")


def test_any_kind_can_be_told_by_a_worker() -> None:
    rows = [{"worker": "a", "field": "jax", "wanted": "1", "found": "2"}]
    told = errors.told_by("worker a", AdmissionRefused(rows))
    assert isinstance(told, AdmissionRefused) and told.message.startswith("worker a: ") and told.details["rows"] == rows
