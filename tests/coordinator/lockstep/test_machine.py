"""The state machine of a group: events in, lists of instructions out."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx_coordinator.lockstep.instructions import (
    Abort,
    Commit,
    Committed,
    Drop,
    Finish,
    Instruction,
    Lost,
    Member,
    Part,
    Replied,
    Send,
)
from phalanx_coordinator.lockstep.machine import Lockstep
from phalanx_proto import blocks
from phalanx_proto.errors import LedgerMismatch, WorkerLost
from phalanx_proto.schedule import Schedule


def schedule(rows: int = 10, batch: int = 4, block: int = 1, epochs: int = 1) -> Schedule:
    return Schedule(rows=rows, batch=batch, block=block, epochs=epochs, seed=42)


def machine(*members: Member, plan: Schedule | None = None) -> Lockstep:
    return Lockstep(run="run", members=members, schedule=plan or schedule())


def two_remote() -> Lockstep:
    return machine(Member(name="a", weight=1), Member(name="b", weight=1))


def reply(member: str, update: int, lo: int, hi: int, **changed: int) -> Replied:
    known = {"incarnation": 1, "rows": hi - lo, "weight": hi - lo, **changed}
    return Replied(member=member, update=update, lo=lo, hi=hi, **known)


def refusal(instructions: Sequence[Instruction]) -> Exception:
    (only,) = instructions
    assert isinstance(only, Abort)
    return only.error


def test_an_update_is_sent_answered_and_committed() -> None:
    group = two_remote()
    assert group.begin() == [Send(member="a", update=0, lo=0, hi=2), Send(member="b", update=0, lo=2, hi=4)]
    assert group.handle(reply("b", 0, 2, 4)) == []
    assert group.handle(reply("a", 0, 0, 2)) == [Commit(update=0)]
    assert group.handle(Committed(update=0)) == [
        Send(member="a", update=1, lo=0, hi=2),
        Send(member="b", update=1, lo=2, hi=4),
    ]
    assert group.update == 1
    assert group.dropped == {}


def test_the_partial_last_batch_and_the_end() -> None:
    group = two_remote()
    group.begin()
    for update in range(2):
        for member, lo, hi in (("a", 0, 2), ("b", 2, 4)):
            group.handle(reply(member, update, lo, hi))
        following = group.handle(Committed(update=update))
    assert following == [Send(member="a", update=2, lo=0, hi=1), Send(member="b", update=2, lo=1, hi=2)]
    group.handle(reply("a", 2, 0, 1))
    assert group.handle(reply("b", 2, 1, 2)) == [Commit(update=2)]
    assert group.handle(Committed(update=2)) == [Finish()]
    assert group.accepted == {"a": [5, 3], "b": [5, 3]}


def test_after_the_end_nothing_is_said_any_more() -> None:
    group = machine(Member(name="a", weight=1), plan=schedule(rows=1, batch=1))
    group.begin()
    group.handle(reply("a", 0, 0, 1))
    assert group.handle(Committed(update=0)) == [Finish()]
    assert group.handle(reply("a", 0, 0, 1)) == []
    assert group.handle(Lost(member="a", error=WorkerLost("gone"))) == []


def test_the_coordinators_own_slots_are_a_part_and_vouched_for() -> None:
    group = machine(Member(name="here", weight=1, local=True), Member(name="there", weight=1))
    assert group.begin() == [
        Send(member="there", update=0, lo=2, hi=4),
        Part(update=0, ranges=(("here", (0, 2)),)),
    ]
    assert group.handle(reply("there", 0, 2, 4)) == [Commit(update=0)]
    assert group.accepted == {"there": [2, 1]}


def test_an_update_of_own_slots_alone_commits_at_once() -> None:
    group = machine(Member(name="here", weight=1, local=True), plan=schedule(rows=4))
    assert group.begin() == [Part(update=0, ranges=(("here", (0, 4)),)), Commit(update=0)]


def test_several_local_members_share_one_part() -> None:
    group = machine(Member(name="one", weight=1, local=True), Member(name="two", weight=3, local=True))
    assert group.begin()[0] == Part(update=0, ranges=(("one", (0, 1)), ("two", (1, 4))))


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (reply("a", 0, 0, 2), "late"),
        (reply("a", 2, 0, 2), "other update"),
        (reply("b", 1, 2, 4), "duplicate"),
        (reply("a", 1, 0, 2, incarnation=7), "other incarnation"),
        (reply("stranger", 1, 0, 2), "unknown member"),
    ],
)
def test_what_does_not_count_is_dropped_and_counted(event: Replied, reason: str) -> None:
    group = two_remote()
    group.begin()
    group.handle(reply("a", 0, 0, 2))
    group.handle(reply("b", 0, 2, 4))
    group.handle(Committed(update=0))
    group.handle(reply("b", 1, 2, 4))
    before = {name: list(counts) for name, counts in group.accepted.items()}
    assert group.handle(event) == [Drop(member=event.member, reason=reason)]
    assert group.dropped == {reason: 1}
    assert group.accepted == before
    assert group.handle(reply("a", 1, 0, 2)) == [Commit(update=1)]


def test_a_reply_repeated_after_the_last_one_does_not_commit_twice() -> None:
    group = two_remote()
    group.begin()
    group.handle(reply("a", 0, 0, 2))
    assert group.handle(reply("b", 0, 2, 4)) == [Commit(update=0)]
    assert group.handle(reply("b", 0, 2, 4)) == [Drop(member="b", reason="duplicate")]
    assert group.handle(reply("a", 0, 0, 2)) == [Drop(member="a", reason="duplicate")]


@pytest.mark.parametrize(
    "wrong",
    [
        reply("b", 0, 2, 4, rows=1),
        reply("b", 0, 2, 4, weight=3),
        reply("b", 0, 0, 2),
        reply("b", 0, 2, 3, rows=2, weight=2),
    ],
)
def test_a_reply_that_contradicts_the_plan_ends_the_run_and_names_the_member(wrong: Replied) -> None:
    group = two_remote()
    group.begin()
    error = refusal(group.handle(wrong))
    assert isinstance(error, LedgerMismatch)
    assert error.details["member"] == "b"
    assert error.details["update"] == 0
    assert "b: update 0: blocks" in error.message
    assert group.handle(reply("a", 0, 0, 2)) == []


def test_a_reply_in_parts_counts_when_the_last_one_is_there() -> None:
    group = two_remote()
    group.begin()
    group.handle(reply("a", 0, 0, 2))
    assert group.handle(reply("b", 0, 3, 4)) == []
    assert group.handle(reply("b", 0, 2, 3)) == [Commit(update=0)]


def test_a_lost_member_ends_the_run_with_its_own_error() -> None:
    group = two_remote()
    group.begin()
    gone = WorkerLost("worker b was ended by SIGKILL", worker="b")
    assert group.handle(Lost(member="b", error=gone)) == [Abort(error=gone)]
    assert group.handle(reply("a", 0, 0, 2)) == []
    assert group.update == 0


def test_members_without_blocks_are_not_asked_and_take_turns() -> None:
    members = [Member(name=name, weight=1) for name in "abc"]
    group = machine(*members, plan=schedule(rows=2, batch=1, epochs=2))
    asked = []
    instructions = group.begin()
    while not isinstance(instructions[0], Finish):
        (send,) = instructions
        assert isinstance(send, Send)
        asked.append(send.member)
        assert group.handle(reply(send.member, send.update, 0, 1)) == [Commit(update=send.update)]
        instructions = group.handle(Committed(update=send.update))
    assert asked == ["a", "b", "c", "a"]
    assert group.accepted == {"a": [2, 2], "b": [1, 1], "c": [1, 1]}


def test_who_owes_an_answer_is_known() -> None:
    group = two_remote()
    assert group.owing() == ()
    group.begin()
    assert group.owing() == ("a", "b")
    group.handle(reply("b", 0, 2, 4))
    assert group.owing() == ("a",)
    assert (group.owner_of(0), group.owner_of(3)) == (None, "b")


groups = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6)


@given(groups, st.integers(1, 60), st.integers(1, 25), st.integers(1, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_every_update_commits_exactly_once_whatever_the_order(
    weights: list[tuple[int, bool]], rows: int, batch: int, block: int, epochs: int, chance: random.Random
) -> None:
    plan = schedule(rows=rows, batch=batch, block=min(block, batch), epochs=epochs)
    members = [Member(name=f"m{n}", weight=weight, local=local) for n, (weight, local) in enumerate(weights)]
    group = machine(*members, plan=plan)
    commits: list[int] = []
    old: list[Replied] = []
    instructions = group.begin()
    while Finish() not in instructions:
        update = group.update
        events = [event for event in instructions if isinstance(event, Send)]
        replies = [_answer(plan, send) for send in events]
        noise = [*replies, *chance.sample(old, min(len(old), 2))]
        mixed = [*replies, *noise]
        chance.shuffle(mixed)
        produced = [instruction for instruction in instructions if isinstance(instruction, Commit)]
        for event in mixed:
            produced += [found for found in group.handle(event) if isinstance(found, Commit)]
        assert produced == [Commit(update=update)]
        commits.append(update)
        old += replies
        instructions = group.handle(Committed(update=update))
    assert commits == list(range(plan.updates))
    remote_rows = sum(rows for rows, _ in group.accepted.values())
    if not any(local for _, local in weights):
        assert remote_rows == rows * epochs
    assert sum(group.dropped.values()) == sum(group.dropped[reason] for reason in ("duplicate", "late"))


def _answer(plan: Schedule, send: Send) -> Replied:
    count = blocks.rows_in(send.lo, send.hi, plan.block, plan.rows_of(send.update))
    return reply(send.member, send.update, send.lo, send.hi, rows=count, weight=count)
