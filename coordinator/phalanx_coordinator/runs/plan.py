"""What follows from a request and its placement before anything is started: sizes, schedule, who computes what."""

from collections.abc import Collection
from dataclasses import dataclass

from phalanx_coordinator.lockstep.instructions import Member
from phalanx_coordinator.lockstep.machine import Lockstep
from phalanx_coordinator.members.placement import Placement
from phalanx_coordinator.runs.checks import check_fit
from phalanx_proto import blocks, tensors
from phalanx_proto.errors import InvalidExperiment
from phalanx_proto.experiment import Experiment, ProgramSpec
from phalanx_proto.jobs import FitRequest
from phalanx_proto.schedule import Schedule

SCORE_BLOCK = 1024
"""Rows of a block of validation, evaluation and prediction; part of the contract, since it decides bits."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What follows from a request and its placement, before anything is started."""

    request: FitRequest
    placement: Placement
    experiment: Experiment
    spec: ProgramSpec
    schedule: Schedule

    @property
    def run(self) -> str:
        """What the run is called, from the experiment alone."""
        return self.experiment.digest[:16]

    def machine(self, absent: Collection[str] = (), update: int = 0) -> Lockstep:
        """The state machine of this fit, before ``update``; ``absent`` members may join later."""
        members = [
            Member(name=record.name, weight=record.weight, local=record.transport == "local")
            for record in self.placement.members
        ]
        return Lockstep(
            run=self.run, members=members, schedule=self.schedule, on_loss=self.request.on_loss, absent=absent,
            update=update,
        )  # fmt: skip

    def canary_rows(self) -> list[int]:
        """The rows of block 0 of update 0."""
        count = min(self.schedule.block, self.schedule.rows_of(0))
        return [int(row) for row in self.schedule.order_of(0)[:count]]

    def owner_of(self, update: int, block: int) -> str:
        """The member that computes a block of an update."""
        if self.placement.remote:
            shares = [(member.name, span) for member, span in self.machine().shares(update)]
        else:
            computing = [
                (owner.name, w) for owner, w in zip(self.placement.owners, self.placement.weights, strict=True) if owner
            ]
            ranges = blocks.share_blocks(self.schedule.blocks_of(update), [weight for _, weight in computing], update)
            shares = [(name, span) for (name, _), span in zip(computing, ranges, strict=True)]
        return next(name for name, (lo, hi) in shares if lo <= block < hi)


def plan_fit(request: FitRequest, placement: Placement) -> Plan:
    """Check a request completely and work out its sizes; raises what is wrong, all of it at once."""
    check_fit(request)
    block = blocks.auto_block(request.batch) if request.block == "auto" else request.block
    schedule = Schedule(
        rows=len(request.train), batch=request.batch, block=block, epochs=request.epochs, seed=request.seed,
        shuffle=request.shuffle,
    )  # fmt: skip
    experiment = Experiment(
        model=request.model, initial=tensors.digest(request.initial), loss=request.loss, optimizer=request.optimizer,
        train=request.train.fingerprint, validation=None if request.validation is None else request.validation.fingerprint,
        epochs=request.epochs, batch=request.batch, block=block, seed=request.seed, shuffle=request.shuffle,
        standardize=request.standardize, keep_best=request.keep_best,
    )  # fmt: skip
    spec = ProgramSpec(
        model=request.model, loss=request.loss, float_targets=request.float_targets, optimizer=request.optimizer,
        dtype=placement.dtype, block=block, score_block=SCORE_BLOCK,
    )  # fmt: skip
    require_work_for_all(placement, schedule)
    return Plan(request=request, placement=placement, experiment=experiment, spec=spec, schedule=schedule)


def require_work_for_all(placement: Placement, schedule: Schedule) -> None:
    """Every selected member must get blocks in some update; raises InvalidExperiment naming those who would not."""
    idle = {member.name for member in placement.members}
    weights = [member.weight for member in placement.members]
    for update in range(schedule.updates):
        ranges = blocks.share_blocks(schedule.blocks_of(update), weights, update)
        idle -= {member.name for member, (lo, hi) in zip(placement.members, ranges, strict=True) if lo < hi}
        if not idle:
            return
    raise InvalidExperiment(
        f"{', '.join(sorted(idle))} would get no rows in the {schedule.updates} updates of this fit; use fewer members, "
        "more even weights, smaller blocks or more updates"
    )
