"""Who takes part in a run: remote members are started, admitted and bound; under ``rebalance`` a lost one is brought back.

Every change is told as an event, with its time and reason. A member comes back as a new process with a new incarnation
number, after the same checks as at the start; how often and how soon is ``timing.Backoff``'s to say.
"""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_coordinator.members import admission
from phalanx_coordinator.members.findings import Finding
from phalanx_coordinator.members.next_steps import next_steps
from phalanx_coordinator.members.placement import Placement
from phalanx_coordinator.members.remote_members import RemoteMembers
from phalanx_coordinator.members.remote_worker import RemoteWorker
from phalanx_coordinator.members.timing import Backoff
from phalanx_coordinator.waiting import guarded, side_by_side
from phalanx_proto.errors import AdmissionRefused, InvalidRequest, PhalanxError, ProgramRefused, Unauthorized, Unavailable
from phalanx_proto.handshake import NOT_RUN
from phalanx_proto.jobs import Event, EventKind, EventListener, OnLoss
from phalanx_worker.inventory import Inventory

PERMANENT = (InvalidRequest, ProgramRefused, Unauthorized)
PERMANENT_FAILURES = frozenset({
    "changed_key", "unknown_key", "refused_key", "bad_configuration", "no_executable", "not_executable", "old_python",
    "not_phalanx", "incomplete", "no_login", "noisy_profile",
})  # fmt: skip
"""Kinds of ``attempt.Failure`` that somebody must mend first."""


def is_permanent(error: PhalanxError) -> bool:
    """Whether another attempt would only be refused again. Self-tests that were not run at all refuse nobody for good."""
    if isinstance(error, AdmissionRefused):
        return not all(row["field"] == "self-test" and row["found"].startswith(NOT_RUN) for row in error.details["rows"])
    return isinstance(error, PERMANENT) or error.details.get("failure") in PERMANENT_FAILURES


Bind = Callable[[RemoteWorker], Awaitable[None]]
"""Makes a started and admitted worker ready to compute; raises what keeps it out."""


@dataclass(kw_only=True)
class Standing:
    """What became of one remote member so far."""

    state: Literal["there", "lost", "refused"] = "lost"
    incarnation: int = 1
    """Of the process that was started last."""
    losses: int = 0
    returns: int = 0
    tried: int = 0
    """Attempts to bring it back in the outage under way."""
    since: float = 0.0
    """When it joined last, on the monotonic clock."""
    reason: str = ""
    """Why it was lost, absent or refused the last time."""

    def note(self, name: str) -> str | None:
        """What a result says of it; None for a member that was there all the time."""
        if not self.reason:
            return None
        lost = f"lost {self.losses} time{'' if self.losses == 1 else 's'}" if self.losses else "absent at the start"
        back = f", back {self.returns} time{'' if self.returns == 1 else 's'}" if self.returns else ""
        return f"{name} was {lost}{back}; the last reason: {self.reason}"


@dataclass(kw_only=True)
class Membership:
    """The remote members of one run."""

    remote: RemoteMembers
    placement: Placement
    inventory: Inventory
    on_loss: OnLoss
    on_event: EventListener
    backoff: Backoff

    def __post_init__(self) -> None:
        self.standings = {record.name: Standing() for record in self.placement.remote}
        self._records = {record.name: record for record in self.placement.remote}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._bind_again: Bind | None = None
        self._joined: Callable[[RemoteWorker], None] | None = None

    @property
    def rebalances(self) -> bool:
        """Whether the run goes on without a lost member."""
        return self.on_loss == "rebalance"

    def tell(self, kind: EventKind, member: str, reason: str = "", update: int | None = None) -> None:
        """Tell of a change now; of a reason, the first line."""
        line = reason.partition("\n")[0]
        self.on_event(Event(time=time.time(), kind=kind, member=member, update=update, reason=line))

    def notes(self) -> list[str]:
        """One for each member that was not there all the time."""
        return [note for name, standing in self.standings.items() if (note := standing.note(name))]

    async def start(self, label: str, start_engines: Awaitable[None]) -> None:
        """Start the engines here and every daemon, side by side.

        Under ``rebalance`` those that cannot be had, or not nearly as soon as the others, are left out, as long as one member
        is there.
        """
        engines = asyncio.Event()

        async def here() -> None:
            await start_engines
            if self.placement.local:
                engines.set()

        async def elsewhere() -> None:
            absent = await self.remote.start(self.placement, label, tolerant=self.rebalances, engines=engines)
            for name, error in absent.items():
                await self.leave_out(name, error)
            self._require_somebody()

        await side_by_side([here(), elsewhere()])

    async def admit(self) -> list[str]:
        """Compare the handshakes with what the run needs; the answer is notes. Raises AdmissionRefused with one table."""
        compared = {name: self.remote.compare(self._records[name], self.placement, self.inventory) for name in self._started()}
        for name, row in self._crowded().items():
            compared[name] = dataclasses.replace(compared[name], refusals=(*compared[name].refusals, row))
        if self.rebalances:
            for name in [name for name, comparison in compared.items() if comparison.refusals]:
                await self.leave_out(name, AdmissionRefused(compared.pop(name).refusals))
            self._require_somebody()
        try:
            return admission.admit(list(compared.values()))
        except AdmissionRefused as refused:
            refused.private = next_steps([
                Finding(record=self._records[name], handshake=self.remote.handshakes[name], refusals=comparison.refusals)
                for name, comparison in compared.items() if comparison.refusals
            ])  # fmt: skip
            raise

    def _crowded(self) -> dict[str, admission.Row]:
        """Who shares a far machine with others that ask for too much together."""
        if self.placement.oversubscribe:
            return {}
        found = {name: self.remote.handshakes[name].slots_found for name in self._started()}
        return admission.shared_slots(self.placement.remote, found)

    async def bind(self, bind: Bind, alongside: Awaitable[None]) -> None:
        """Bind every admitted member while ``alongside`` runs; under ``rebalance`` without those that cannot be bound."""
        if not self.rebalances:
            workers = list(self.remote.workers.values())
            await guarded(side_by_side([alongside, *(bind(worker) for worker in workers)]), workers)
        else:
            await side_by_side([alongside, *(self.attempt(name, bind) for name in self._started())])
            self._require_somebody()

    async def attempt(self, name: str, work: Bind) -> None:
        """Do something with a member that may be lost or refused meanwhile; then the run goes on without it."""
        worker = self.remote.workers[name]
        try:
            await guarded(_awaited(work(worker)), [worker])
        except PhalanxError as error:
            if not self.rebalances:
                raise
            await self.leave_out(name, error)

    async def leave_out(self, name: str, error: PhalanxError) -> None:
        """A member is not there at the start; ``bring_back`` tries again unless that would be refused again."""
        self._note_absence(name, error)
        await self.remote.drop(name)

    def _note_absence(self, name: str, error: PhalanxError) -> None:
        if is_permanent(error):
            return self._refuse(name, _told(error))
        self.standings[name].reason = _told(error)
        self.tell("lost", name, _told(error))

    def _started(self) -> list[str]:
        return list(self.remote.workers)

    def _require_somebody(self) -> None:
        if not self.placement.local and not self.remote.workers:
            raise Unavailable(f"no member is there: {'; '.join(standing.reason for standing in self.standings.values())}")

    def begin(self, bind_again: Bind, joined: Callable[[RemoteWorker], None]) -> None:
        """The work begins. Until ``close``, who is absent or lost is sought; one that is found is bound and ``joined``."""
        self._bind_again, self._joined = bind_again, joined
        for name in self._started():
            self._settle(name)
            self.tell("admitted", name)
        for name, standing in self.standings.items():
            if self.rebalances and standing.state == "lost":
                self._seek(name)

    def _settle(self, name: str) -> None:
        standing = self.standings[name]
        standing.state, standing.since = "there", time.monotonic()

    def lost(self, worker: RemoteWorker, error: PhalanxError) -> None:
        """A member was lost during the run: end what is left of it, and bring it back."""
        standing = self.standings[worker.name]
        standing.state, standing.reason = "lost", error.message.partition("\n")[0]
        standing.losses += 1
        if time.monotonic() - standing.since > self.backoff.settled:
            standing.tried = 0
        self._seek(worker.name)

    def _seek(self, name: str) -> None:
        ending = _kept(self._ending, self.remote.drop(name))
        _kept(self._tasks, self._seeking(name, ending))

    async def _seeking(self, name: str, ending: "asyncio.Task[None]") -> None:
        await asyncio.wait({ending})
        standing = self.standings[name]
        while (wait := self.backoff.wait(standing.tried)) is not None:
            await asyncio.sleep(wait)
            standing.tried += 1
            self.tell("rejoining", name, f"attempt {standing.tried} of {self.backoff.attempts}: {standing.reason}")
            try:
                worker = await self._brought_back(self._records[name])
            except PhalanxError as error:
                if is_permanent(error):
                    return self._refuse(name, _told(error))
                standing.reason = _told(error)
            except Exception as error:  # a fault of ours must not pass for a machine that is not there
                return self._refuse(name, f"{type(error).__name__}: {error}")
            else:
                self._settle(name)
                standing.returns += 1
                assert self._joined is not None
                return self._joined(worker)
        self._refuse(name, f"no attempt is left; the last one: {standing.reason}")

    def _refuse(self, name: str, reason: str) -> None:
        standing = self.standings[name]
        standing.state, standing.reason = "refused", reason
        self.tell("refused", name, reason)

    async def _brought_back(self, record: WorkerRecord) -> RemoteWorker:
        """A new process of a member, checked and bound; if that fails, nothing of it is left."""
        assert self._bind_again is not None
        standing = self.standings[record.name]
        standing.incarnation += 1
        worker = await self.remote.start_one(record, self.placement, standing.incarnation)
        try:
            admission.admit([self.remote.compare(record, self.placement, self.inventory)])
            await guarded(_awaited(self._bind_again(worker)), [worker])
        except BaseException:
            await asyncio.shield(self.remote.drop(record.name))
            raise
        return worker

    async def close(self) -> None:
        """Seek nobody any more; what an attempt had started has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)


def _kept(tasks: set["asyncio.Task[None]"], work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """A task for ``work``, in the set until it is done."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # who cannot be told ends the run elsewhere
    return task


async def _awaited(work: Awaitable[None]) -> None:
    await work


def _told(error: PhalanxError) -> str:
    """A reason on one line; a table of refusals is told whole."""
    head, *rows = error.message.splitlines() or [""]
    told = "; ".join(row.strip() for row in rows)
    return f"{head}{' ' if head.endswith(':') else '; '}{told}" if rows else head
