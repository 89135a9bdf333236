"""Faults as data: what happens to whom, in which update, at which moment of it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from phalanx_proto.jobs import OnLoss

Phase = Literal["asked", "computing", "replying", "replied"]
"""Before the request is read; while it is worked on; when a part of the answer is out; when all of it is."""
Kind = Literal[
    "kill", "stop", "cut", "silence", "slow", "corrupt", "duplicate", "reorder", "stale", "engine",
]  # fmt: skip
"""
kill: the process ends. stop: it is stopped, and continued after ``seconds``, if its heartbeat is not missed before. cut: the
connection breaks and the process lives. silence: nothing more comes over the connection. slow: the answer takes ``seconds``
more. corrupt: a chunk is changed on its way. duplicate: a message comes twice. reorder: messages change places. stale: the
answer to an earlier update comes again. engine: the worker says that its engine failed.
"""
Again = Literal["at once", "after failures", "refused", "never"]
"""How a member that was lost comes back."""
PHASES: tuple[Phase, ...] = get_args(Phase)
KINDS: tuple[Kind, ...] = get_args(Kind)
AGAIN: tuple[Again, ...] = get_args(Again)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault; it happens once, to the life of the member that reaches this moment first."""

    member: str
    update: int
    phase: Phase
    kind: Kind
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """One member of a group."""

    name: str
    weight: float = 1.0
    local: bool = False
    again: Again = "at once"
    absent: bool = False
    """Whether it is not there at the beginning."""


Boundary = Literal["before the commit", "after the commit", "before the checkpoint", "after the checkpoint", "full disk"]
"""Where a coordinator ends: at any instruction boundary of a commit, or since a checkpoint cannot be written."""
BOUNDARIES: tuple[Boundary, ...] = get_args(Boundary)


@dataclass(frozen=True, kw_only=True)
class Crash:
    """The coordinator ends in this update (of a full disk: at the first checkpoint from there on), and is started again."""

    update: int
    boundary: Boundary


@dataclass(frozen=True, kw_only=True)
class Case:
    """A small fit, its group, and what happens to it."""

    rows: int
    batch: int
    block: int
    epochs: int
    group: tuple[Place, ...]
    faults: tuple[Fault, ...]
    on_loss: OnLoss = "rebalance"
    buffers: int | None = None
    """Usual buffers of the node area; None for room for all."""
    crashes: tuple[Crash, ...] = ()
    every: int = 1
    """Updates between two checkpoints."""


def random_case(chance: random.Random, faults: int = 6, on_loss: OnLoss = "rebalance") -> Case:
    """A fit over one to four members with up to so many faults."""
    batch = chance.randint(1, 24)
    rows = chance.randint(1, 60)
    remote = chance.randint(1, 4)
    places = [
        Place(
            name="abcd"[n], weight=float(chance.randint(1, 5)), again=chance.choice(AGAIN),
            absent=on_loss == "rebalance" and chance.random() < 0.1,
        )
        for n in range(remote)
    ]  # fmt: skip
    places += [Place(name=f"here-{n}", weight=float(chance.randint(1, 5)), local=True) for n in range(chance.randint(0, 2))]
    chance.shuffle(places)
    updates = -(-rows // batch) * 3
    names = [place.name for place in places if not place.local]
    return Case(
        rows=rows, batch=batch, block=chance.randint(1, min(batch, 3)), epochs=3, group=tuple(places), on_loss=on_loss,
        faults=tuple(random_fault(chance, names, updates) for _ in range(chance.randint(0, faults))),
        buffers=chance.choice((None, 4)), every=chance.randint(1, 4),
        crashes=tuple(
            Crash(update=chance.randrange(updates), boundary=chance.choice(BOUNDARIES))
            for _ in range(chance.choice((0, 0, 1, 3)))
        ),
    )  # fmt: skip


def random_fault(chance: random.Random, names: Sequence[str], updates: int) -> Fault:
    """Any fault of any member at any moment."""
    return Fault(
        member=chance.choice(names), update=chance.randrange(updates), phase=chance.choice(PHASES), kind=chance.choice(KINDS),
        seconds=chance.choice((0.01, 1.0, 3.0, 30.0, 400.0)),
    )  # fmt: skip
