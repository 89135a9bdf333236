"""Who may join a run: slots against what the machine allots, and handshakes against what the run needs. Pure.

Everything that is wrong with anybody is found before the answer, so that one table tells all of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx_coordinator.cluster.record import WorkerRecord
from phalanx_proto.errors import AdmissionRefused, Unavailable
from phalanx_proto.execution import Backend
from phalanx_proto.experiment import DType
from phalanx_proto.handshake import PASSED, PROTOCOL, BackendFound, Handshake

MAX_LOCAL_SLOTS = 256
MAX_AUTOMATIC = 8

Row = Mapping[str, str]
"""worker, field, wanted, found."""


@dataclass(frozen=True, kw_only=True)
class HandshakeExpectation:
    """What one member of the run must answer."""

    worker: str
    source: str
    jax: str
    jaxlib: str
    python: str
    """Only the difference of major.minor is worth a note; programs carry no Python."""
    slots: int
    backend: Backend
    device: int
    dtype: DType
    oversubscribe: bool = False
    protocol: int = PROTOCOL


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How a handshake differs from what was expected."""

    refusals: tuple[Row, ...] = ()
    """Each difference that keeps the worker out."""
    notes: tuple[str, ...] = ()
    """Differences that are worth saying but keep nobody out."""


def automatic_workers(slots: int, physical_cpus: int | None = None) -> int:
    """The conservative choice of ``local(workers=0)``: one engine a core, one core left over where there are three.

    Two logical CPUs of one core share its arithmetic units, so they count once; more than eight engines must be asked
    for. ``slots`` is the allocation, ``physical_cpus`` the machine's cores if known.
    """
    cores = min(slots, physical_cpus) if physical_cpus else slots
    spared = cores - 1 if cores > 2 else cores
    return max(1, min(spared, MAX_AUTOMATIC))


def allocation_problems(records: Sequence[WorkerRecord], *, slots: int, reason: str) -> list[str]:
    """How the slots of the members on one machine exceed its ``slots`` (for ``reason``); empty where they fit.

    CPU slots add up. An accelerator is a slot of its own and takes none of them, but can be given out once. Members
    on other machines are left out: their own worker knows its allocation.
    """
    here = [record for record in records if record.here]
    problems = []
    cpu = [record for record in here if record.backend == "cpu"]
    asked = sum(record.slots for record in cpu)
    if asked > slots:
        listed = ", ".join(f"{record.name} {record.slots}" for record in cpu)
        problems.append(
            f"the workers on this machine ask for {asked} CPU slots together ({listed}), but {slots} are "
            f"found, because {reason}"
        )
    devices = Counter((record.backend, record.device) for record in here if record.backend != "cpu")
    for (backend, device), number in sorted(devices.items()):
        if number > 1:
            problems.append(f"{number} workers on this machine ask for {backend} device {device}, which is one slot")
    return problems


def check_allocation(records: Sequence[WorkerRecord], *, slots: int, reason: str, oversubscribe: bool = False) -> list[str]:
    """Pass if the members on this machine fit its allocation: ``slots``, for ``reason``.

    The answer is the notes that the result must carry.
    Raises ``Unavailable`` with all problems, unless ``oversubscribe`` admits them, which makes them notes. More than
    256 engines on one machine are never admitted.
    """
    here = sum(record.slots for record in records if record.here)
    if here > MAX_LOCAL_SLOTS:
        raise Unavailable(
            f"the workers on this machine ask for {here} slots together; at most {MAX_LOCAL_SLOTS} can be started",
            asked=here,
            found=MAX_LOCAL_SLOTS,
        )
    problems = allocation_problems(records, slots=slots, reason=reason)
    if problems and not oversubscribe:
        raise Unavailable(
            "; ".join(problems) + "; ask for fewer, or write oversubscribe = true",
            problems=problems,
            found=slots,
            reason=reason,
        )
    return [f"oversubscribed: {problem}" for problem in problems]


def compare_handshake(wanted: HandshakeExpectation, found: Handshake) -> Comparison:
    """Every way in which ``found`` is not ``wanted``. A worker of another protocol is not asked for more."""
    if found.protocol != wanted.protocol:
        answer = f"{found.protocol} (Phalanx {found.phalanx or 'unknown'})"
        return Comparison(refusals=(_row(wanted, "protocol", str(wanted.protocol), answer),))
    rows = [
        _row(wanted, field, expected, actual)
        for field, expected, actual in (
            ("source", wanted.source, found.source),
            ("jax", wanted.jax, found.jax),
            ("jaxlib", wanted.jaxlib, found.jaxlib),
            ("self-test", PASSED, found.self_test),
        )
        if expected != actual
    ]
    rows += _backend_rows(wanted, found.backend(wanted.backend))
    if wanted.backend == "cpu":
        rows += _slot_rows(wanted, found)
    return Comparison(refusals=tuple(rows), notes=tuple(_python_notes(wanted, found)))


def shared_slots(records: Sequence[WorkerRecord], found: Mapping[str, int]) -> dict[str, Row]:
    """By worker, the row of each that shares a machine behind ssh with others which together ask for more than it has.

    ``found`` are the CPU slots that each worker found. Each of them alone would fit; a machine is known by its destination.
    """
    machines: dict[object, list[WorkerRecord]] = {}
    for record in records:
        if not record.here and record.backend == "cpu" and record.name in found:
            machines.setdefault((record.host, record.ssh_options), []).append(record)
    rows: dict[str, Row] = {}
    for together in machines.values():
        asked, slots = sum(record.slots for record in together), min(found[record.name] for record in together)
        if len(together) > 1 and asked > slots:
            names = " and ".join(record.name for record in together)
            field = f"slots of {names}, on one machine"
            rows |= {r.name: {"worker": r.name, "field": field, "wanted": str(asked), "found": str(slots)} for r in together}
    return rows


def admit(comparisons: Sequence[Comparison]) -> list[str]:
    """Pass if every member may join; the answer is all notes.

    Raises ``AdmissionRefused`` with the rows of all members in one table.
    """
    rows = [row for comparison in comparisons for row in comparison.refusals]
    if rows:
        raise AdmissionRefused(rows)
    return [note for comparison in comparisons for note in comparison.notes]


def _backend_rows(wanted: HandshakeExpectation, found: BackendFound | None) -> list[Row]:
    if wanted.backend == "mps" and wanted.dtype == "float64":
        return [_row(wanted, "dtype", "float64", "float32 alone: mps has no float64")]
    if found is None or not found.devices:
        reason = found.reason if found is not None and found.reason else "not found"
        return [_row(wanted, "backend", wanted.backend, reason)]
    if wanted.device >= len(found.devices):
        listed = ", ".join(f"{ordinal}: {kind}" for ordinal, kind in enumerate(found.devices))
        return [_row(wanted, "device", f"{wanted.backend} {wanted.device}", listed)]
    return []


def _slot_rows(wanted: HandshakeExpectation, found: Handshake) -> list[Row]:
    """A worker started for another number of slots, or on a machine that has fewer."""
    rows = []
    if found.slots_asked != wanted.slots:
        rows.append(_row(wanted, "slots asked", str(wanted.slots), str(found.slots_asked)))
    if found.slots_found < wanted.slots and not wanted.oversubscribe:
        rows.append(_row(wanted, "slots", str(wanted.slots), str(found.slots_found)))
    return rows


def _python_notes(wanted: HandshakeExpectation, found: Handshake) -> list[str]:
    ours, theirs = (version.split(".")[:2] for version in (wanted.python, found.python))
    if ours == theirs:
        return []
    return [f"{wanted.worker} runs Python {_plain(found.python)}, the coordinator {wanted.python}"]


def _row(wanted: HandshakeExpectation, field: str, expected: str, actual: str) -> Row:
    return {"worker": wanted.worker, "field": field, "wanted": expected, "found": _plain(actual) or "not installed"}


def _plain(text: str) -> str:
    """A peer's words made fit for a terminal: printable, on one line and short."""
    return "".join(c if c.isprintable() else " " for c in text)[:200].strip()
