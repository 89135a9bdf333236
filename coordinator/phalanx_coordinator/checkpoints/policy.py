"""When a run writes a checkpoint. Pure: the time is an argument.

At the end of an epoch, as long as all checkpoints together take a small share of the time, by what the last one took; and
whenever half a minute has passed, whatever it costs. So a crash costs seconds of a short epoch, and never minutes.
"""

from dataclasses import dataclass, field

from phalanx_proto.jobs import SimulationRequest
from phalanx_proto.schedule import Schedule


@dataclass(kw_only=True)
class CheckpointPolicy:
    """The rule, and what it has to remember: when the last checkpoint was taken, and what writing it cost."""

    period: int
    """Updates of an epoch; 1 where any moment is as good as another."""
    total: int
    """Updates of the run. There is no checkpoint at its end: what comes there is the result."""
    every: int | None = None
    """Updates from one checkpoint to the next, whatever they cost; None lets time and cost decide."""
    longest: float = 30.0
    """Seconds after which a checkpoint is due at the next update."""
    share: float = 0.01
    """The part of the time that checkpoints at the ends of epochs may take."""
    cost: float = field(default=0.0, init=False)
    """Seconds from taking the last checkpoint to having it on disk. The first one counts as free: it shows what they cost."""

    @classmethod
    def of_fit(cls, schedule: Schedule, every: int | None) -> "CheckpointPolicy":
        """The rule of a fit."""
        return cls(period=schedule.updates_per_epoch, total=schedule.updates, every=every)

    @classmethod
    def of_simulation(cls, request: SimulationRequest) -> "CheckpointPolicy":
        """The rule of a simulation, which counts samples for updates: one chunk is as good a moment as another."""
        return cls(period=1, total=request.samples, every=request.checkpoint_every)

    def __post_init__(self) -> None:
        self._taken, self._update = 0.0, 0

    def take(self, now: float, update: int) -> None:
        """A checkpoint of ``update`` is taken; also said once at the beginning, with the update that the run begins at."""
        self._taken, self._update = now, update

    def due(self, now: float, update: int) -> bool:
        """Whether to take one after ``update`` updates."""
        if not self._update < update < self.total:
            return False
        if self.every is not None:
            return update // self.every > self._update // self.every
        if now - self._taken >= self.longest:
            return True
        return update % self.period == 0 and self._affordable(now)

    def stop(self, now: float, update: int) -> int:
        """Where a run that is at ``update`` has to stop for its next checkpoint, at the latest; its end where nowhere."""
        step = self.every or (self.period if self._affordable(now) else None)
        return self.total if step is None else min((update // step + 1) * step, self.total)

    def _affordable(self, now: float) -> bool:
        return now - self._taken >= self.cost / self.share
