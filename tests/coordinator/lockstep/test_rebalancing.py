"""A group that goes on without lost members: the pure machine, told of losses, returns, and replies that come too late."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx_coordinator.lockstep.instructions import (
    Abort,
    Commit,
    Committed,
    Drop,
    Finish,
    Instruction,
    Joined,
    Lost,
    Member,
    Part,
    Replied,
    Send,
    Tell,
)
from phalanx_coordinator.lockstep.machine import Lockstep
from phalanx_proto import blocks
from phalanx_proto.errors import WorkerLost
from phalanx_proto.schedule import Schedule


def schedule(rows: int = 24, batch: int = 12, block: int = 1, epochs: int = 1) -> Schedule:
    return Schedule(rows=rows, batch=batch, block=block, epochs=epochs, seed=42)


def machine(*members: Member, plan: Schedule | None = None, absent: Sequence[str] = ()) -> Lockstep:
    return Lockstep(run="run", members=members, schedule=plan or schedule(), on_loss="rebalance", absent=absent)


def remote(*names: str) -> list[Member]:
    return [Member(name=name, weight=1) for name in names]


def gone(name: str, why: str = "was ended by SIGKILL", incarnation: int | None = None) -> Lost:
    return Lost(member=name, error=WorkerLost(f"worker {name} {why}", worker=name), incarnation=incarnation)


def reply(send: Send, plan: Schedule, **changed: int) -> Replied:
    rows = blocks.rows_in(send.lo, send.hi, plan.block, plan.rows_of(send.update))
    known = {"incarnation": send.incarnation, "rows": rows, "weight": rows, **changed}
    return Replied(member=send.member, update=send.update, lo=send.lo, hi=send.hi, **known)


def sends(instructions: Sequence[Instruction]) -> list[tuple[str, int, int]]:
    return [(found.member, found.lo, found.hi) for found in instructions if isinstance(found, Send)]


def send(member: str, update: int, lo: int, hi: int, incarnation: int = 1) -> Send:
    return Send(member=member, update=update, lo=lo, hi=hi, incarnation=incarnation)


def test_what_a_lost_member_owed_goes_to_the_others_and_the_next_update_is_planned_without_it() -> None:
    group = machine(*remote("a", "b", "c"))
    assert sends(group.begin()) == [("a", 0, 4), ("b", 4, 8), ("c", 8, 12)]
    group.handle(reply(send("a", 0, 0, 4), schedule()))
    assert group.handle(gone("b")) == [
        send("a", 0, 4, 6),
        send("c", 0, 6, 8),
        Tell(kind="lost", member="b", update=0, reason="worker b was ended by SIGKILL"),
        Tell(kind="rebalanced", member="b", update=0, reason="4 of its blocks went to a, c"),
    ]
    assert group.attempt == 1
    group.handle(reply(send("a", 0, 4, 6), schedule()))
    group.handle(reply(send("c", 0, 8, 12), schedule()))
    assert group.handle(reply(send("c", 0, 6, 8), schedule())) == [Commit(update=0)]
    assert sends(group.handle(Committed(update=0))) == [("a", 0, 6), ("c", 6, 12)]
    assert group.accepted == {"a": [6, 1], "b": [0, 0], "c": [6, 1]}


def test_what_it_had_answered_still_counts() -> None:
    group = machine(*remote("a", "b"))
    group.begin()
    group.handle(reply(send("b", 0, 6, 12), schedule()))
    assert group.handle(gone("b")) == [Tell(kind="lost", member="b", update=0, reason="worker b was ended by SIGKILL")]
    assert group.handle(reply(send("a", 0, 0, 6), schedule())) == [Commit(update=0)]
    assert sends(group.handle(Committed(update=0))) == [("a", 0, 12)]


def test_the_own_slots_take_their_share_as_a_further_part() -> None:
    group = machine(Member(name="here", weight=1, local=True), *remote("a", "b"))
    assert group.begin()[-1] == Part(update=0, ranges=(("here", (0, 4)),))
    found = group.handle(gone("b"))
    assert found[:2] == [send("a", 0, 10, 12), Part(update=0, ranges=(("here", (8, 10)),), attempt=1)]
    group.handle(reply(send("a", 0, 4, 8), schedule()))
    assert group.handle(reply(send("a", 0, 10, 12), schedule())) == [Commit(update=0)]


def test_the_last_remote_member_leaves_the_update_to_the_own_slots() -> None:
    group = machine(Member(name="here", weight=1, local=True), *remote("a"))
    group.begin()
    found = group.handle(gone("a"))
    assert found[0] == Part(update=0, ranges=(("here", (6, 12)),), attempt=1)
    assert found[-1] == Commit(update=0)
    assert group.handle(Committed(update=0)) == [Part(update=1, ranges=(("here", (0, 12)),)), Commit(update=1)]


def test_ranges_that_lie_apart_are_taken_in_as_few_pieces_as_there_are_gaps() -> None:
    group = machine(Member(name="here", weight=2, local=True), *remote("a", "b", "c"))
    group.begin()
    group.handle(gone("a"))
    found = group.handle(gone("b"))
    pieces = [*sends(found), *(span for part in found if isinstance(part, Part) for span in part.ranges)]
    covered = [block for *_, lo, hi in sends(found) for block in range(lo, hi)]
    covered += [block for part in found if isinstance(part, Part) for _, (lo, hi) in part.ranges for block in range(lo, hi)]
    assert len(covered) == len(set(covered)) == 3  # b's own two, and the one it had taken over
    assert len(pieces) <= 3


def test_nobody_left_ends_the_run_by_name() -> None:
    group = machine(*remote("a", "b"))
    group.begin()
    group.handle(gone("a"))
    (end, told) = group.handle(gone("b", "gave no sign of life"))
    assert isinstance(told, Tell)
    assert isinstance(end, Abort)
    assert isinstance(end.error, WorkerLost)
    assert end.error.message == "update 0: no member is left to compute it; the last one: worker b gave no sign of life"
    assert end.error.details == {"worker": "b", "update": 0}
    assert group.handle(reply(send("a", 0, 0, 6), schedule())) == []


def test_who_is_lost_while_an_update_is_committed_is_missed_by_the_next_one() -> None:
    group = machine(*remote("a", "b"))
    group.begin()
    group.handle(reply(send("a", 0, 0, 6), schedule()))
    group.handle(reply(send("b", 0, 6, 12), schedule()))
    assert [type(found) for found in group.handle(gone("b"))] == [Tell]
    assert sends(group.handle(Committed(update=0))) == [("a", 0, 12)]


def test_all_are_lost_while_the_last_update_is_committed() -> None:
    group = machine(*remote("a"), plan=schedule(rows=12))
    group.begin()
    group.handle(reply(send("a", 0, 0, 12), schedule()))
    group.handle(gone("a"))
    assert group.handle(Committed(update=0)) == [Finish()]


def test_a_part_that_was_planned_ahead_stands_whoever_is_lost_after_it() -> None:
    group = machine(Member(name="here", weight=1, local=True), *remote("a", "b"))
    group.begin()
    group.handle(reply(send("a", 0, 4, 8), schedule()))
    group.handle(reply(send("b", 0, 8, 12), schedule()))
    ahead = group.ahead()
    assert ahead == Part(update=1, ranges=(("here", (0, 4)),))
    group.handle(gone("a"))
    found = group.handle(Committed(update=0))
    assert found == [
        send("b", 1, 8, 12),
        ahead,
        send("b", 1, 6, 8),
        Part(update=1, ranges=(("here", (4, 6)),), attempt=1),
        Tell(kind="rebalanced", member="a", update=1, reason="4 of its blocks went to here, b"),
    ]
    assert group.ahead() is None  # there is no third update


def test_a_member_that_comes_back_is_planned_in_again_from_the_next_update() -> None:
    plan = schedule(rows=36)
    group = machine(*remote("a", "b"), plan=plan)
    group.begin()
    group.handle(gone("a"))
    assert group.handle(Joined(member="a", incarnation=2)) == [Tell(kind="joined", member="a", update=0)]
    group.handle(reply(send("b", 0, 6, 12), plan))
    assert group.handle(reply(send("b", 0, 0, 6), plan)) == [Commit(update=0)]
    assert group.handle(Committed(update=0)) == [send("a", 1, 0, 6, 2), send("b", 1, 6, 12)]


@pytest.mark.parametrize(
    ("late", "reason"),
    [(reply(send("a", 0, 0, 6), schedule()), "lost member"), (reply(send("a", 1, 0, 6), schedule()), "other update")],
)
def test_what_a_lost_member_still_says_is_dropped_and_counted(late: Replied, reason: str) -> None:
    group = machine(*remote("a", "b"))
    group.begin()
    group.handle(gone("a"))
    assert group.handle(late) == [Drop(member="a", reason=reason)]
    assert group.dropped == {reason: 1}


def test_a_reply_of_an_earlier_life_is_dropped() -> None:
    group = machine(*remote("a", "b"))
    group.begin()
    group.handle(gone("a"))
    group.handle(Joined(member="a", incarnation=2))
    group.handle(reply(send("b", 0, 6, 12), schedule()))
    group.handle(reply(send("b", 0, 0, 6), schedule()))
    group.handle(Committed(update=0))
    assert group.handle(reply(send("a", 1, 0, 6), schedule())) == [Drop(member="a", reason="other incarnation")]
    assert group.handle(reply(send("a", 0, 0, 6), schedule())) == [Drop(member="a", reason="late")]


def test_the_news_of_an_earlier_life_does_not_end_the_present_one() -> None:
    group = machine(*remote("a", "b"))
    group.begin()
    group.handle(gone("a"))
    group.handle(Joined(member="a", incarnation=2))
    assert group.handle(gone("a", incarnation=1)) == []
    assert group.handle(Joined(member="a", incarnation=2)) == []
    assert group.handle(Joined(member="a", incarnation=1)) == []
    assert group.handle(Joined(member="stranger", incarnation=1)) == []


def test_one_that_comes_back_before_anybody_noticed_its_loss_is_lost_first() -> None:
    group = machine(*remote("a", "b"))
    group.begin()
    found = group.handle(Joined(member="a", incarnation=2))
    assert [told.kind for told in found if isinstance(told, Tell)] == ["lost", "rebalanced", "joined"]
    assert sends(found) == [("b", 0, 6)]


def test_the_only_one_is_asked_again_in_its_next_life() -> None:
    group = machine(*remote("a", "b"))
    group.begin()
    group.handle(gone("b"))
    group.handle(Joined(member="b", incarnation=2))
    assert sends(group.handle(gone("a"))) == [("b", 0, 12)]
    assert group.handle(reply(send("b", 0, 0, 12, 2), schedule())) == [Commit(update=0)]


def test_blocks_around_a_member_without_any_go_on_as_one_range() -> None:
    plan = schedule(rows=8, batch=4)
    members = [Member(name="a", weight=3), Member(name="b", weight=0.01), Member(name="d", weight=4)]
    group = machine(*members, plan=plan)
    for found in group.begin():  # in turn 0 everybody has work
        assert isinstance(found, Send)
        group.handle(reply(found, plan))
    assert sends(group.handle(Committed(update=0))) == [("a", 0, 2), ("d", 2, 4)]
    assert sends(group.handle(gone("a"))) == [("d", 0, 2)]
    assert sends(group.handle(gone("d"))) == [("b", 0, 4)]


def test_two_lives_that_ended_before_the_plan_was_used_and_one_that_is_back() -> None:
    plan = schedule(rows=36)
    group = machine(Member(name="here", weight=1, local=True), *remote("a", "b"), plan=plan)
    group.begin()
    for name, lo, hi in (("a", 4, 8), ("b", 8, 12)):
        group.handle(reply(send(name, 0, lo, hi), plan))
    assert group.ahead() == Part(update=1, ranges=(("here", (0, 4)),))
    group.handle(gone("a"))
    group.handle(gone("b"))
    group.handle(Joined(member="b", incarnation=2))
    found = group.handle(Committed(update=0))
    assert found[1] == Part(update=1, ranges=(("here", (4, 12)),), attempt=1)
    assert group.handle(Committed(update=1))[0] == send("b", 2, 6, 12, 2)


def test_who_is_absent_at_the_beginning_may_join_later() -> None:
    group = machine(*remote("a", "b"), absent=["b"])
    assert sends(group.begin()) == [("a", 0, 12)]
    assert group.handle(Joined(member="b", incarnation=1)) == [Tell(kind="joined", member="b", update=0)]
    group.handle(reply(send("a", 0, 0, 12), schedule()))
    assert sends(group.handle(Committed(update=0))) == [("a", 0, 6), ("b", 6, 12)]


def test_nobody_there_at_the_beginning() -> None:
    (end,) = machine(*remote("a"), absent=["a"]).begin()
    assert isinstance(end, Abort)
    assert end.error.message == (
        "update 0: no member is left to compute it; the last one: no member was there at the beginning"
    )


@dataclass
class Group:
    """Drives a machine as the edge does, with a will of its own about order and time."""

    machine: Lockstep
    chance: random.Random
    todo: list[Instruction] = field(default_factory=list)
    asked: list[Send] = field(default_factory=list)
    old: list[Replied] = field(default_factory=list)
    lives: dict[str, int] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    counted: Counter[int] = field(default_factory=Counter)
    commits: list[int] = field(default_factory=list)
    ahead: Part | None = None

    def follow(self, instructions: Sequence[Instruction]) -> None:
        for found in instructions:
            if isinstance(found, Send) and self.lives[found.member] == found.incarnation and found.member not in self.down:
                self.asked.append(found)
            elif isinstance(found, Part):
                assert found.update == self.machine.update
                if found.attempt == 0 and self.ahead is not None:
                    assert found == self.ahead
                self.counted.update(block for _, (lo, hi) in found.ranges for block in range(lo, hi))
            elif isinstance(found, Commit | Finish | Abort):
                self.todo.append(found)

    def hear(self, told: Replied) -> None:
        found = self.machine.handle(told)
        if not any(isinstance(one, Drop) for one in found):
            self.counted.update(range(told.lo, told.hi))
        self.old.append(told)
        self.follow(found)

    def commit(self) -> None:
        update = self.machine.update
        assert self.counted == {block: 1 for block in range(self.machine.schedule.blocks_of(update))}
        self.commits.append(update)
        self.ahead = self.machine.ahead() if self.chance.random() < 0.7 else None
        for _ in range(self.chance.randrange(3)):
            self.disturb()
        self.counted.clear()
        self.asked.clear()
        self.follow(self.machine.handle(Committed(update=update)))

    def disturb(self) -> None:
        remote = list(self.lives)
        if not remote:
            return
        name = self.chance.choice(remote)
        if name in self.down:
            self.lives[name] += 1
            self.down.discard(name)
            self.follow(self.machine.handle(Joined(member=name, incarnation=self.lives[name])))
        else:
            self.down.add(name)
            self.old += [reply(one, self.machine.schedule) for one in self.asked if one.member == name]
            self.asked = [one for one in self.asked if one.member != name]
            self.follow(self.machine.handle(gone(name, incarnation=self.lives[name])))

    def run(self, losses: int) -> Finish | Abort:
        self.follow(self.machine.begin())
        while True:
            ends = [one for one in self.todo if isinstance(one, Finish | Abort)]
            if ends:
                return ends[0]
            if self.todo:
                assert self.todo == [Commit(update=self.machine.update)]
                self.todo.clear()
                self.commit()
            elif losses and self.chance.random() < 0.3:
                losses -= 1
                self.disturb()
            elif self.old and self.chance.random() < 0.3:
                self.hear(self.chance.choice(self.old))
            else:
                assert self.asked, "nothing is under way, and nothing follows"
                self.hear(reply(self.asked.pop(self.chance.randrange(len(self.asked))), self.machine.schedule))


groups = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=5)


@settings(max_examples=300)
@given(
    groups, st.integers(1, 60), st.integers(1, 25), st.integers(1, 4), st.integers(1, 4), st.integers(0, 30),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_every_block_counts_once_whoever_is_lost_and_comes_back(
    weights: list[tuple[int, bool]], rows: int, batch: int, block: int, epochs: int, losses: int, chance: random.Random
) -> None:
    plan = schedule(rows=rows, batch=batch, block=min(block, batch), epochs=epochs)
    members = [Member(name=f"m{n}", weight=weight, local=local) for n, (weight, local) in enumerate(weights)]
    group = Group(machine(*members, plan=plan), chance, lives={member.name: 1 for member in members if not member.local})
    end = group.run(losses)
    assert group.commits == list(range(len(group.commits)))
    if isinstance(end, Finish):
        assert len(group.commits) == plan.updates
    else:
        assert not any(local for _, local in weights), "the own slots are always left"
        assert "no member is left to compute it" in end.error.message
    assert set(group.machine.dropped) <= {"duplicate", "late", "lost member", "other incarnation", "other update"}
