"""How long and in what steps to fit: epochs, batch, rate, order and validation."""

from dataclasses import dataclass
from typing import Literal

from phalanx.checks import Faults
from phalanx_proto.errors import ProtectedRole
from phalanx_proto.experiment import Rows

AUTO: Literal["auto"] = "auto"


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """Checked training settings; ``training`` makes them. Together with model and rows they decide the result."""

    epochs: int
    batch: int
    """Rows of one update; the last batch of an epoch may be smaller."""
    rate: float
    seed: int
    """Decides the order of the rows."""
    validation: Rows | None
    block: int | Literal["auto"]
    """Rows of one gradient block; "auto" is a function of the batch alone."""
    shuffle: bool
    keep_best: bool
    """Keep the parameters of the epoch with the lowest validation loss."""

    def __repr__(self) -> str:
        validation = "None" if self.validation is None else f"<{len(self.validation):,} rows>"
        return (
            f"Training(epochs={self.epochs}, batch={self.batch}, rate={self.rate!r}, seed={self.seed}, "
            f"validation={validation}, block={self.block!r}, shuffle={self.shuffle}, keep_best={self.keep_best})"
        )


def training(
    *,
    epochs: int,
    batch: int,
    rate: float,
    seed: int = 42,
    validation: Rows | None = None,
    block: int | Literal["auto"] = AUTO,
    shuffle: bool = True,
    keep_best: bool = False,
) -> Training:
    """Settings of a fit: ``epochs`` passes in updates of ``batch`` rows at the learning ``rate``.

    ``validation`` rows are scored after each epoch; ``keep_best`` needs them. ``block`` (rows of one gradient block, at
    most ``batch``) is part of the experiment, for it decides the order of the sums. Raises ``InvalidExperiment`` with
    all faults, and ``ProtectedRole`` for validation rows of another role.
    """
    faults = Faults()
    epochs = faults.whole("epochs", epochs, 1)
    before = len(faults.problems)
    batch = faults.whole("batch", batch, 1)
    largest_block = batch if len(faults.problems) == before else None
    rate = faults.real("rate", rate, 0.0, open_low=True)
    seed = faults.seed(seed)
    block = _block(faults, block, largest_block)
    shuffle = faults.flag("shuffle", shuffle)
    keep_best = faults.flag("keep_best", keep_best)
    if keep_best and validation is None:
        faults.add("keep_best needs validation rows to judge by: give validation=parts.validation")
    faults.settle()
    _require_validation(validation)
    return Training(
        epochs=epochs,
        batch=batch,
        rate=rate,
        seed=seed,
        validation=validation,
        block=block,
        shuffle=shuffle,
        keep_best=keep_best,
    )


def _block(faults: Faults, block: object, largest: int | None) -> int | Literal["auto"]:
    if isinstance(block, str):
        if block != AUTO:
            faults.add(f'block must be "auto" or a whole number of rows, not {block!r:.60}')
        return AUTO
    size = faults.whole("block", block, 1)
    if largest is not None and size > largest:
        faults.add(f"block must be at most batch ({largest:,}), not {size:,}")
    return size


def _require_validation(validation: object) -> None:
    if validation is None:
        return
    if not isinstance(validation, Rows):
        kind = type(validation).__name__
        raise ProtectedRole(
            f"validation takes rows with the role validation, not a {kind}, which has no role: "
            "use dataset.partition(...).validation, or dataset.rows(role='validation')"
        )
    if validation.role != "validation":
        raise ProtectedRole(f"validation takes rows with the role validation; these have the role {validation.role}")
