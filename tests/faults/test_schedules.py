"""Any schedule of faults over a small fit: the digest of the unbroken run, or a failure by name; nothing twice, nothing left.

Coordinator, lockstep, node area, ledger, client and messages are the real ones; members and engine are a few lines
(``fakes``), and time is virtual, so hundreds of schedules take seconds. ``test_real`` has processes and sockets.
"""

import asyncio
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.lockstep.group_run import GroupRun, Stopped
from phalanx_coordinator.lockstep.instructions import Member as GroupMember
from phalanx_coordinator.lockstep.instructions import Tell
from phalanx_coordinator.lockstep.machine import Lockstep
from phalanx_coordinator.lockstep.node_area import buffers_in_reserve, buffers_needed
from phalanx_coordinator.members import membership
from phalanx_coordinator.members.membership import Membership
from phalanx_coordinator.members.placement import Placement
from phalanx_coordinator.members.timing import Deadlines, UpdatePace
from phalanx_proto import tensors
from phalanx_proto.errors import Unavailable, WorkerLost
from phalanx_proto.jobs import Event
from phalanx_proto.schedule import Schedule
from tests.faults import virtual_time
from tests.faults.fakes import Checkpoints, Disk, Ended, Leader, Member, Pool, Remote, is_named, sizes, unbroken
from tests.faults.schedules import BOUNDARIES, KINDS, PHASES, Boundary, Case, Crash, Fault, Kind, Phase, Place, random_case

DEADLINES = Deadlines()
SLOW_SECONDS = 120.0
"""Of random schedules in the slow test."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """How a case went."""

    digest: str
    error: Exception | None
    first: int
    """The update that it began with."""
    update: int
    """The update after the last one that was committed."""
    events: list[Event]
    dropped: Counter[str]
    seconds: float
    """Of virtual time."""
    left: int
    """Tasks that outlived the run."""
    most: int
    """Most buffers in use in the last update."""

    def kinds(self, member: str) -> list[str]:
        """What happened to one member, in order."""
        return [event.kind for event in self.events if event.member == member]


def schedule_of(case: Case) -> Schedule:
    return Schedule(rows=case.rows, batch=case.batch, block=case.block, epochs=case.epochs, seed=1)


def work_of(case: Case, schedule: Schedule) -> dict[str, Any]:
    """The arena of the pool, as arrays of this process."""
    local = [place.local for place in case.group]
    count = max(buffers_needed(schedule.capacity, local, 40), buffers_in_reserve(schedule.capacity, local))
    return {"remote": np.zeros((count, sizes(1).node_size)), "parameters": np.zeros((2, sizes(1).parameters))}


def membership_of(case: Case, remote: Any, events: list[Event]) -> Membership:
    records = [
        WorkerRecord(name=place.name, transport="local" if place.local else "socket", weight=place.weight)
        for place in case.group
    ]
    placement = Placement(kind="cluster", dtype="float64", members=tuple(records))
    machine: Any = None
    return Membership(
        remote=remote, placement=placement, inventory=machine, on_loss=case.on_loss, on_event=events.append,
        backoff=DEADLINES.rejoin,
    )  # fmt: skip


async def carry_out(case: Case, faults: list[Fault], disk: Disk) -> Story:
    """One life of a coordinator: from its newest checkpoint to its end. Faults that happen are taken from the list."""
    schedule, events = schedule_of(case), list[Event]()
    remote = Remote(case.group, lambda name, life: Member(name, life, schedule, faults, DEADLINES))
    there = [place for place in case.group if not (place.local or place.absent)]
    for place in there:
        remote.have(place.name, 1)
    members = membership_of(case, remote, events)
    work: Any = work_of(case, schedule)
    leader = Leader(schedule, work, disk)
    machine = Lockstep(
        run="run", schedule=schedule, on_loss=case.on_loss, update=leader.first,
        absent=[place.name for place in case.group if place.absent],
        members=[GroupMember(name=place.name, weight=place.weight, local=place.local) for place in case.group],
    )  # fmt: skip
    pool: Any = Pool(leader)
    workers: Any = dict(remote.workers)
    owners = [place.name for place in case.group if place.local]

    def tell(told: Tell) -> None:
        members.tell(told.kind, told.member, told.reason, told.update)

    group = GroupRun(
        machine=machine, pool=pool, owners=[None, *owners], workers=workers, work=work,
        sizes=sizes(case.block), schedule=schedule, pace=UpdatePace(DEADLINES), usual=case.buffers, tell=tell,
        on_commit=lambda answer: None, on_lost=members.lost, checkpoints=Checkpoints(leader, disk),  # type: ignore[arg-type]
    )  # fmt: skip
    members.begin(remote.bind_again, group.join)
    error: Exception | None = None
    loop = asyncio.get_running_loop()
    try:
        assert not isinstance(await group.run(), Stopped)
    except Exception as failure:
        error = failure
    finally:
        seconds = loop.time()
        await members.close()
    left = len(asyncio.all_tasks()) - 1
    return Story(
        digest=tensors.digest(leader.parameters), error=error, first=leader.first, update=leader.update, events=events,
        dropped=machine.dropped, seconds=seconds, left=left, most=group._area.most,
    )  # fmt: skip


def check(case: Case) -> Story:
    """Carry a case out, coordinator by coordinator, and hold it to what every one must hold; the last one's story."""
    schedule, faults, disk = schedule_of(case), list(case.faults), Disk(case.crashes, case.every)
    for _ in range(1 + len(case.crashes)):
        kept = disk.kept[-1][0]
        story = virtual_time.run(carry_out(case, faults, disk))
        assert (story.first, story.left) == (kept, 0)
        assert kept <= story.update <= schedule.updates
        assert story.seconds <= DEADLINES.opening * (1 + len(case.faults)) + 60.0
        ended = isinstance(story.error, Ended) or (isinstance(story.error, Unavailable) and "no space" in str(story.error))
        if not ended:
            break
    if story.error is None:
        assert story.update == schedule.updates
        assert story.digest == unbroken(schedule)
        return story
    assert is_named(story.error, ["member", *(place.name for place in case.group)]), repr(story.error)
    if case.on_loss == "rebalance":
        assert isinstance(story.error, WorkerLost), repr(story.error)
        assert "no member" in story.error.message
        assert not any(place.local for place in case.group)
    return story


@settings(max_examples=250)
@given(st.randoms(use_true_random=False), st.sampled_from(["rebalance", "rebalance", "rebalance", "abort"]))
def test_any_schedule_ends_in_the_unbroken_digest_or_by_name(chance: random.Random, on_loss: Any) -> None:
    check(random_case(chance, on_loss=on_loss))


@pytest.mark.slow
def test_many_random_schedules() -> None:
    seed = int(os.environ.get("PHALANX_FAULT_SEED", time.time_ns() % 10**9))
    print(f"PHALANX_FAULT_SEED={seed}")
    chance, until, number = random.Random(seed), time.monotonic() + SLOW_SECONDS, 0
    while time.monotonic() < until:
        case = random_case(chance, faults=12, on_loss=chance.choice(("rebalance", "rebalance", "abort")))
        number += 1
        try:
            check(case)
        except BaseException:
            print(f"seed {seed}, case {number}: {case!r}")
            raise


def one(kind: Kind, phase: Phase, *, seconds: float = 30.0, member: str = "a", update: int = 2) -> Fault:
    return Fault(member=member, update=update, phase=phase, kind=kind, seconds=seconds)


def case_of(*faults: Fault, group: tuple[Place, ...] = (Place(name="a"), Place(name="b")), **changed: Any) -> Case:
    known = {"rows": 48, "batch": 12, "block": 1, "epochs": 2, **changed}
    return Case(group=group, faults=faults, **known)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_fault_of_each_kind_at_each_moment(kind: Kind, phase: Phase) -> None:
    uneven = (Place(name="a", weight=5), Place(name="b", weight=7))  # so that an answer has several nodes
    story = check(case_of(one(kind, phase), group=uneven))
    assert story.error is None
    assert story.kinds("a")[:2] == ["admitted", "lost"]
    assert story.kinds("b") == ["admitted"]


@pytest.mark.parametrize("kind", ["stop", "slow"])
def test_what_is_slow_for_a_moment_is_not_lost(kind: Kind) -> None:
    story = check(case_of(one(kind, "computing", seconds=3.0)))
    assert story.kinds("a") == ["admitted"]


def test_a_lost_member_is_back_in_a_later_update() -> None:
    story = check(case_of(one("kill", "computing"), rows=1200))
    assert story.kinds("a") == ["admitted", "lost", "rebalanced", "rejoining", "joined"]
    lost, joined = (next(event for event in story.events if event.kind == kind) for kind in ("lost", "joined"))
    assert lost.update == 2
    assert lost.reason == "worker a was ended by SIGKILL"
    assert joined.update is not None and joined.update > 2


def test_a_member_that_shows_other_bits_is_refused_for_good() -> None:
    group = (Place(name="a", again="refused"), Place(name="b"))
    story = check(case_of(one("kill", "computing"), group=group, rows=1200))
    assert story.kinds("a") == ["admitted", "lost", "rebalanced", "rejoining", "refused"]
    assert "canary" in story.events[-1].reason


def test_attempts_to_bring_a_member_back_are_bounded() -> None:
    group = (Place(name="a", again="never"), Place(name="b"))
    slow = [one("slow", "computing", seconds=15.0, member="b", update=n) for n in range(4, 100)]
    story = check(case_of(one("kill", "computing"), *slow, group=group, rows=1200))
    tried = story.kinds("a")[3:]
    assert tried == ["rejoining"] * DEADLINES.rejoin.attempts + ["refused"]
    assert "no attempt is left; the last one: worker a: no route to it" in story.events[-1].reason


def test_a_machine_that_was_not_there_at_the_start_joins_later() -> None:
    group = (Place(name="a", absent=True), Place(name="b"))
    story = check(case_of(group=group, rows=1200))
    assert story.kinds("a") == ["rejoining", "joined"]


def test_a_loss_with_abort_ends_the_run_with_the_members_own_error() -> None:
    story = check(case_of(one("kill", "computing"), on_loss="abort"))
    assert isinstance(story.error, WorkerLost)
    assert story.error.message == "worker a was ended by SIGKILL"
    assert story.update == 2


def test_losses_in_one_update_until_one_is_left() -> None:
    group = tuple(Place(name=name, again="never") for name in "abcd")
    phases: tuple[Phase, ...] = ("replied", "computing", "replying")
    faults = [one("kill", phase, member=name) for name, phase in zip("acd", phases, strict=True)]
    story = check(case_of(*faults, group=group, buffers=4))
    assert story.error is None


def test_the_silence_of_all_ends_the_run_when_their_time_is_over() -> None:
    story = check(case_of(one("silence", "asked"), one("silence", "asked", member="b")))
    assert isinstance(story.error, WorkerLost)
    assert "no member is left" in story.error.message
    assert story.seconds < DEADLINES.update + 5.0


def test_a_stopped_member_costs_no_more_than_its_heartbeat() -> None:
    story = check(case_of(one("stop", "computing")))
    lost = next(event for event in story.events if event.kind == "lost")
    assert "gave no sign of life" in lost.reason
    assert story.seconds < DEADLINES.heartbeat + 1.0


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_coordinator_that_ends_at_any_boundary_goes_on_from_its_checkpoint(boundary: Boundary, every: int) -> None:
    crashes = (Crash(update=3, boundary=boundary), Crash(update=6, boundary=boundary))
    story = check(case_of(one("kill", "computing", update=3), crashes=crashes, every=every))
    assert story.error is None
    assert story.first >= 3


def test_a_clock_that_jumps_changes_only_the_times_that_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr(membership.time, "time", lambda: float(next(clock)))  # type: ignore[attr-defined]
    story = check(case_of(one("stop", "computing"), rows=600))
    assert story.kinds("a") == ["admitted", "lost", "rebalanced", "rejoining", "joined"]
    assert [event.time for event in story.events] == sorted((event.time for event in story.events), reverse=True)
