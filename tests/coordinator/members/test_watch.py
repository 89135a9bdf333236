"""What a status says of members: shares and latencies from measurements, N/A where there are none."""

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members.membership import Standing
from phalanx_coordinator.members.placement import Placement
from phalanx_coordinator.members.watch import MemberWatch
from phalanx_proto.jobs import MemberStatus

POOL, FAR = WorkerRecord(name="pool", transport="local", slots=2), WorkerRecord(name="far", transport="socket")
PLACEMENT = Placement(kind="cluster", dtype="float64", members=(POOL, FAR))


def test_before_anything_is_measured_nothing_is_claimed() -> None:
    watch = MemberWatch(PLACEMENT, {"far": Standing(state="there")})
    assert watch.statuses({}) == (
        MemberStatus(name="pool", state="computing"), MemberStatus(name="far", state="computing"),
    )  # fmt: skip


def test_a_member_that_is_not_there_says_why() -> None:
    standing = Standing(state="lost", reason="worker far was ended by SIGKILL")
    watch = MemberWatch(PLACEMENT, {"far": standing})
    assert watch.statuses({"far": 7})[1] == MemberStatus(name="far", state="lost", rows=7, reason=standing.reason)
    standing.tried = 1
    assert watch.statuses({})[1].state == "rejoining"
    standing.state = "refused"
    assert watch.statuses({})[1].state == "refused"
    standing.state = "there"
    assert watch.statuses({})[1] == MemberStatus(name="far", state="computing")


def test_latency_follows_the_last_answers() -> None:
    watch = MemberWatch(PLACEMENT, {"far": Standing(state="there")})
    watch.answered("far", 1.0)
    assert watch.statuses({})[1].latency == 1.0
    watch.answered("far", 2.0)
    assert watch.statuses({})[1].latency == 1.1


def test_slots_of_one_member_add_up_and_the_slowest_counts() -> None:
    watch = MemberWatch(PLACEMENT, {})
    first = [{"rows": 10, "updates": 2, "compute": 4_000_000_000}, {"rows": 6, "updates": 2, "compute": 2_000_000_000}]
    assert watch.tallied(first) == {"pool": 16}
    assert watch.statuses({})[0].latency == 2.0
    later = [{"rows": 15, "updates": 3, "compute": 4_500_000_000}, {"rows": 9, "updates": 3, "compute": 5_000_000_000}]
    assert watch.tallied(later) == {"pool": 24}
    assert watch.statuses({"pool": 24})[0] == MemberStatus(name="pool", state="computing", rows=24, latency=3.0)
    assert watch.tallied(later) == {"pool": 24}
    assert watch.statuses({})[0].latency == 3.0
