"""ssh: what does a member cost that is reached through ssh, beside the same one on a socket, and at a distance?

Everything is on loopback, through a real sshd; a distance is a relay that delays every byte (``tests/hosts/delay.py``).
"""

import statistics
from dataclasses import replace

from benchmarks.contenders import Contender
from benchmarks.question import Goal, Measured, Question, Scale, Verdict, fastest_group

FIT, SIMULATION, ROUND_TRIP, EXCHANGE, START, DISTANCE = (
    "fit", "simulation", "a round trip", "an exchange", "start of a group", "distance",
)  # fmt: skip
SHARED_EXCHANGE, SHARED_START = "an exchange, half a core each", "start of a group, a third of a core each"
ALONE, SOCKETS, FORWARDS, RELAYS = "phalanx local(1)", "phalanx two sockets", "phalanx two forwards", "phalanx two relays"
SOCKET, FORWARD, RELAY, BARE = "phalanx one socket", "phalanx one forward", "phalanx one relay", "bare ssh forward"
ONE_MACHINE, THREE_MACHINES = "phalanx, one machine", "phalanx, three machines"
DISTANCES = (1, 10, 60)
GROUPS = {ALONE: "local:1", SOCKETS: "group:ss", FORWARDS: "group:ff", RELAYS: "group:rr"}
SINGLES = {SOCKET: "group:s", FORWARD: "group:f", RELAY: "group:r"}


def contenders(case: str, scale: Scale) -> list[Contender]:
    return {
        FIT: _fit, SIMULATION: _simulation, ROUND_TRIP: _round_trip, EXCHANGE: _exchange, SHARED_EXCHANGE: _shared_exchange,
        START: _start, SHARED_START: _shared_start, DISTANCE: _distance,
    }[case](scale)  # fmt: skip


def _ours(name: str, module: str, placement: str, *arguments: str) -> Contender:
    return Contender(
        name=name, module=module, arguments=(*arguments, "--placement", placement), needs=("phalanx",), ours=True, exact=False
    )


def _bare(name: str, *arguments: str) -> Contender:
    return Contender(name=name, module="forward_echo", arguments=arguments, exact=False)


def _fit(scale: Scale) -> list[Contender]:
    arguments = ("--dtype", "float64", "--epochs", str(scale.of(10, 1)))
    return [_ours(name, "dense_phalanx", placement, *arguments) for name, placement in GROUPS.items()]


def _simulation(scale: Scale) -> list[Contender]:
    samples = str(scale.of(10**9, 10**7))
    return [_ours(name, "simulation_phalanx", placement, "--samples", samples, "--whole") for name, placement in GROUPS.items()]


def _tiny(updates: int) -> tuple[str, ...]:
    return ("--inputs", "4", "--batch", "8", "--updates", str(updates), "--oversubscribe")


def _round_trip(scale: Scale) -> list[Contender]:
    updates = scale.of(3_000, 100)
    bare = _bare(BARE, "--down", "64", "--up", "128", "--repeats", str(updates))
    return [bare, *(_ours(name, "update_phalanx", place, *_tiny(updates)) for name, place in SINGLES.items())]


def _exchange(scale: Scale) -> list[Contender]:
    inputs, hidden, repeats = scale.of(4_997, 497), scale.of(5_000, 500), scale.of(10, 20)
    parameters = inputs * hidden + hidden + hidden * 2 + 2
    bare = _bare(BARE, "--down", str(4 * parameters), "--up", str(8 * parameters), "--repeats", str(repeats))
    size = ("--inputs", str(inputs), "--hidden", str(hidden), "--batch", "2", "--updates", str(repeats))
    return [bare, *(_ours(name, "update_phalanx", place, *size) for name, place in SINGLES.items())]


def _shared_exchange(scale: Scale) -> list[Contender]:
    names = (BARE, FORWARD)
    whole = [contender for contender in _exchange(scale) if contender.name in names]
    return [replace(contender, arguments=(*contender.arguments, "--share", "0.5")) for contender in whole]


def _start(scale: Scale, *more: str) -> list[Contender]:
    machines = {ONE_MACHINE: "group:f", THREE_MACHINES: "group:fff"}
    return [_ours(name, "group_start", placement, *more) for name, placement in machines.items()]


def _shared_start(scale: Scale) -> list[Contender]:
    return _start(scale, "--share", "0.33")


def _distance(scale: Scale) -> list[Contender]:
    updates = scale.of(200, 30)
    found = [_ours("phalanx, no distance", "update_phalanx", "group:f", *_tiny(updates))]
    for far in DISTANCES:
        found.append(_bare(f"bare ssh forward, {far} ms", "--milliseconds", str(far), "--repeats", str(updates)))
        found.append(_ours(f"phalanx, {far} ms", "update_phalanx", f"group:f@{far}", *_tiny(updates)))
    return found


def _percentile(text: str, key: str, limit: float) -> Goal:
    """A percentile of an update's round trip through a forward."""

    def verdict(measured: Measured) -> Verdict:
        rows = [s for s in measured.samples if (s.case, s.contender) == (ROUND_TRIP, FORWARD) and key in s.extra]
        if not rows:
            return Verdict(goal=text, found="not measured", reached=None)
        found = statistics.median(row.extra[key] for row in rows)
        return Verdict(goal=text, found=f"{found:.3g} ms", reached=found <= limit)

    return verdict


def _moves(text: str, case: str, least: float) -> Goal:
    """Bytes a second of an exchange through a forward, while they move, against those of the bare forward."""

    def verdict(measured: Measured) -> Verdict:
        keys = {FORWARD: "moving_gigabytes_a_second", BARE: "gigabytes_a_second"}
        rows = [s for s in measured.samples if s.case == case]
        found = {name: [s.extra[key] for s in rows if s.contender == name and key in s.extra] for name, key in keys.items()}
        if not all(found.values()):
            return Verdict(goal=text, found="not measured", reached=None)
        mine, bare = (statistics.median(values) for values in found.values())
        return Verdict(goal=text, found=f"{mine / bare:.2f} ({mine:.2f} of {bare:.2f} GB/s)", reached=mine / bare >= least)

    return verdict


def _at_most_times(text: str, case: str, contender: str, reference: str, most: float) -> Goal:
    """Median over rounds of contender / reference."""

    def verdict(measured: Measured) -> Verdict:
        ratios = measured.ratios(case, contender, reference)
        if not ratios:
            return Verdict(goal=text, found="not measured", reached=None)
        ratio = statistics.median(ratios)
        return Verdict(goal=text, found=f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", reached=ratio <= most)

    return verdict


def _near_the_floor(far: int) -> Goal:
    """An update at a distance against one round trip of that line plus an update without the distance."""
    text = f"{far} ms: an update within 1.15 of the floor (one round trip and the slowest member)"

    def verdict(measured: Measured) -> Verdict:
        names = (f"phalanx, {far} ms", f"bare ssh forward, {far} ms", "phalanx, no distance")
        mine, line, work = (measured.median(DISTANCE, name) for name in names)
        if mine is None or line is None or work is None:
            return Verdict(goal=text, found="not measured", reached=None)
        ratio = mine / (line + work)
        found = f"{ratio:.2f} ({mine * 1e3:.1f} ms; {line * 1e3:.1f} ms + {work * 1e3:.2f} ms)"
        return Verdict(goal=text, found=found, reached=ratio <= 1.15)

    return verdict


QUESTION = Question(
    name="ssh",
    title="Members behind ssh",
    about="Milliseconds, over loopback, through a real sshd. Fit: the Dense fixture of above in float64, 300 updates. "
    "Simulation: 10^9 samples. A round trip: an update of ten parameters. An exchange: an update of 25,000,002 "
    "parameters with one member (100 MB down, 200 MB up), and of the same bytes through a bare forward. Start: from "
    "nothing until every member is bound. A share of a core each: this process with its engine, each ssh, sshd and each member "
    "have so much of a processor to themselves and no more, as on slow machines of their own. Distance: an update of ten "
    "parameters where every round trip takes so long.",
    unit="ms",
    factor=1e3,
    cases=(FIT, SIMULATION, ROUND_TRIP, EXCHANGE, SHARED_EXCHANGE, START, SHARED_START, DISTANCE),
    contenders=contenders,
    reference=SOCKETS,
    tolerance=0.05,
    goals=(
        fastest_group("a fit over ssh faster than one member alone", FIT, (FORWARDS,), (ALONE,)),
        fastest_group("a simulation over ssh faster than one member alone", SIMULATION, (FORWARDS,), (ALONE,)),
        _at_most_times("a fit over ssh within 1.25 of the same members on sockets", FIT, FORWARDS, SOCKETS, 1.25),
        _percentile("95 of 100 updates over ssh in at most 1.5 ms", "p95_ms", 1.5),
        _percentile("no stalls: 99 of 100 updates in at most 20 ms", "p99_ms", 20.0),
        _moves("the bytes of an exchange move at 0.8 or more of what ssh itself moves", EXCHANGE, 0.8),
        _moves("the same with half a core each", SHARED_EXCHANGE, 0.8),
        _at_most_times("three machines start within 1.5 times one", START, THREE_MACHINES, ONE_MACHINE, 1.5),
        _at_most_times("the same with a third of a core each", SHARED_START, THREE_MACHINES, ONE_MACHINE, 1.5),
        *(_near_the_floor(far) for far in DISTANCES),
    ),
    unfair=(
        "Both ends share the same cores: ssh and sshd encrypt and decrypt every byte on them, and members behind ssh compute "
        "on them.",
        "An update of Phalanx also computes gradients, widens and adds sums, checks them and makes the update; the bare "
        "forward only moves bytes.",
        "Three machines that start are three workers on the cores of one here: real machines would not share them.",
        "The delay is made by a Python process, which adds some tenths of a millisecond; the bare forward pays it too.",
    ),
    digits=2,
    columns=(
        ("p50_ms", "p50, ms"),
        ("p95_ms", "p95, ms"),
        ("longest_ms", "longest, ms"),
        ("gigabytes_a_second", "GB/s"),
        ("moving_gigabytes_a_second", "GB/s while they move"),
    ),
)
