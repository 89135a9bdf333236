"""Where a run stands before its first own update: at the beginning, or where its checkpoint is."""

from phalanx_coordinator.runs.history import History
from phalanx_coordinator.runs.plan import Plan
from phalanx_coordinator.runs.resumption import Resumption
from phalanx_proto.jobs import Progress, SimulationRequest


def of_fit(plan: Plan, going_on: Resumption) -> Progress:
    """Updates, the last whole epoch and its losses."""
    checkpoint = going_on.checkpoint
    if checkpoint is None:
        return Progress(phase="starting")
    history = History(plan.spec)
    history.restore(checkpoint.arrays["history"])
    last = history.records[-1] if history.records else None
    return Progress(
        phase="starting", done=checkpoint.update, total=plan.schedule.updates, epoch=last.epoch if last else None,
        loss=last.train.loss if last else None, validation_loss=last.validation.loss if last and last.validation else None,
    )  # fmt: skip


def of_simulation(request: SimulationRequest, going_on: Resumption) -> Progress:
    """Counted samples."""
    total = 0 if going_on.checkpoint is None else request.samples
    return Progress(phase="starting", done=going_on.update, total=total, unit="samples")
