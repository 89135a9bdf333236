import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx_proto.chunks import ChunkLedger
from phalanx_proto.errors import CorruptData, InvalidRequest, LedgerMismatch


def test_chunks_are_counted_once() -> None:
    ledger = ChunkLedger(10, 4)
    taken = [ledger.take(name) for name in ("a", "b", "a")]
    assert taken == [(0, 0, 4), (1, 4, 8), (2, 8, 10)]
    assert ledger.take("b") is None and not ledger.done
    assert ledger.accept("a", 2, 8, 10, 2)
    assert ledger.accept("a", 0, 0, 4, 0)
    assert not ledger.accept("a", 0, 0, 4, 0)
    assert not ledger.accept("a", 1, 4, 8, 3)
    assert ledger.accept("b", 1, 4, 8, 3)
    assert ledger.done and ledger.take("a") is None
    assert (ledger.hits, ledger.samples, ledger.dropped, ledger.chunks) == (5, 10, 2, 3)
    assert ledger.by_member == {"a": 6, "b": 4}


def test_chunks_of_a_lost_member_go_to_others_and_its_late_reply_does_not_count() -> None:
    ledger = ChunkLedger(12, 4)
    ledger.take("a"), ledger.take("b"), ledger.take("a")
    assert ledger.give_back("a") == (0, 2)
    assert ledger.give_back("a") == ()
    assert not ledger.accept("a", 0, 0, 4, 1)
    assert [ledger.take("b"), ledger.take("b"), ledger.take("b")] == [(0, 0, 4), (2, 8, 12), None]
    for index in range(3):
        assert ledger.accept("b", index, 4 * index, 4 * index + 4, 1)
    assert ledger.done and ledger.by_member == {"b": 12} and ledger.dropped == 1


@pytest.mark.parametrize(
    ("index", "start", "stop", "hits"),
    [(0, 0, 4, 5), (0, 0, 4, -1), (0, 0, 3, 1), (0, 1, 4, 1), (1, 4, 8, 1), (-1, 0, 4, 1), (9, 36, 40, 1)],
)
def test_chunks_that_contradict_the_ledger_raise(index: int, start: int, stop: int, hits: int) -> None:
    ledger = ChunkLedger(10, 4)
    ledger.take("a")
    with pytest.raises(LedgerMismatch, match=f"a: chunk {index}"):
        ledger.accept("a", index, start, stop, hits)
    assert ledger.samples == 0 and ledger.accept("a", 0, 0, 4, 4)


def test_at_most_a_million_chunks() -> None:
    assert ChunkLedger(10**12, 10**6).chunks == 10**6
    with pytest.raises(InvalidRequest, match="the smallest chunk that fits is 1000001"):
        ChunkLedger(10**12 + 1, 10**6)
    for samples, chunk in ((0, 1), (1, 0)):
        with pytest.raises(InvalidRequest):
            ChunkLedger(samples, chunk)


@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 1 << 32))
def test_losing_members_at_any_time_loses_no_sample(samples: int, chunk: int, seed: int) -> None:
    random = Random(seed)
    ledger = ChunkLedger(samples, chunk)
    owed: dict[str, tuple[int, int, int] | None] = dict.fromkeys("abc")
    for _ in range(100_000):
        member = random.choice("abc")
        task = owed[member]
        if task is None:
            owed[member] = ledger.take(member)
        elif random.random() < 0.2:
            ledger.give_back(member)
            owed[member] = None
        else:
            assert ledger.accept(member, *task, task[2] - task[1])
            owed[member] = None
        assert len(ledger._owner) <= 3
        if ledger.done:
            break
    assert ledger.hits == ledger.samples == sum(ledger.by_member.values()) == samples


@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 1 << 32))
def test_a_simulation_may_stop_and_go_on_at_any_moment(samples: int, chunk: int, seed: int) -> None:
    """Chunks have distinct hits, so that one counted twice, or left out, would show."""
    random = Random(seed)
    ledger = ChunkLedger(samples, chunk)
    counted = Counter[int]()
    owed: dict[str, tuple[int, int, int] | None] = dict.fromkeys("abc")
    while not ledger.done:
        member = random.choice(list(owed))
        task = owed[member]
        if random.random() < 0.1:
            ledger = ChunkLedger.restore(json.loads(json.dumps(ledger.state())))
            owed = dict.fromkeys(random.sample("abcdef", random.randint(1, 4)))
        elif task is None:
            owed[member] = ledger.take(member)
        elif random.random() < 0.1:
            ledger.give_back(member)
            owed[member] = None
        else:
            assert ledger.accept(member, *task, task[0] % (task[2] - task[1] + 1))
            counted[task[0]] += 1
            owed[member] = None
    assert set(counted.values()) == {1} and len(counted) == ledger.chunks
    assert ledger.samples == sum(ledger.by_member.values()) == samples
    widths = (min((index + 1) * chunk, samples) - index * chunk for index in range(ledger.chunks))
    assert ledger.hits == sum(index % (width + 1) for index, width in enumerate(widths))
    assert ChunkLedger.restore(ledger.state()).done


def test_a_late_reply_of_the_earlier_part_does_not_count() -> None:
    ledger = ChunkLedger(12, 4)
    ledger.take("a"), ledger.take("b")
    assert ledger.accept("a", 0, 0, 4, 1)
    again = ChunkLedger.restore(ledger.state())
    assert again.returned == 1 and not again.accept("b", 1, 4, 8, 2)
    assert again.take("c") == (1, 4, 8) and again.take("c") == (2, 8, 12) and again.take("c") is None
    assert again.accept("c", 1, 4, 8, 2) and again.accept("c", 2, 8, 12, 0)
    assert (again.hits, again.dropped, dict(again.by_member)) == (3, 1, {"a": 4, "c": 8})


@pytest.mark.parametrize(
    "changed",
    [
        {"samples": 8}, {"hits": 7}, {"hits": -1}, {"owed": []}, {"owed": [0, 1]}, {"owed": [2]}, {"owed": [-1]},
        {"owed": None}, {"handed_out": 9}, {"handed_out": "many"}, {"by_member": {"a": 3}}, {"by_member": []}, {"chunk": 0},
        {"total": 13},
    ],
)  # fmt: skip
def test_a_ledger_that_does_not_add_up_is_refused(changed: dict[str, Any]) -> None:
    ledger = ChunkLedger(10, 4)
    ledger.take("a"), ledger.take("b"), ledger.take("b")
    ledger.accept("a", 0, 0, 4, 1), ledger.accept("b", 2, 8, 10, 1)
    state = ledger.state()
    assert ChunkLedger.restore(state).returned == 1
    with pytest.raises(CorruptData, match="the ledger of a simulation"):
        ChunkLedger.restore({**state, **changed})
    with pytest.raises(CorruptData):
        ChunkLedger.restore({})
