"""Simulation: what does a sample of the quarter-circle count cost, on one core and on two?"""

from benchmarks import machine
from benchmarks.contenders import Contender
from benchmarks.question import Goal, Question, Scale, at_most, times_as_fast

ONE, TWO = "one core", "two cores"
LOCAL_1, SOCKET = "phalanx local(1)", "phalanx one socket"
LOCAL_2, LOCAL_SOCKET, SOCKETS = "phalanx local(2)", "phalanx local + socket", "phalanx two sockets"
NUMBA, WIDE_NUMBA = "Numba, same integers", "Numba, same integers, 512 bit"
PLACEMENTS = {
    ONE: {LOCAL_1: "local:1", SOCKET: "group:s"},
    TWO: {LOCAL_1: "local:1", LOCAL_2: "local:2", LOCAL_SOCKET: "group:ls", SOCKETS: "group:ss"},
}
"""local(1) takes part in both cases, so that each has its ratio from its own rounds."""


def contenders(case: str, scale: Scale) -> list[Contender]:
    arguments = ("--samples", str(scale.of(1_000_000_000, 10_000_000)))
    ours = [
        Contender(
            name=name,
            module="simulation_phalanx",
            arguments=(*arguments, "--placement", placement),
            needs=("phalanx",),
            ours=True,
        )
        for name, placement in PLACEMENTS[case].items()
    ]
    return ours + (_one_core(arguments) if case == ONE else _two_cores(arguments))


def _one_core(arguments: tuple[str, ...]) -> list[Contender]:
    numba = Contender(name=NUMBA, module="simulation_numba", arguments=arguments, needs=("numba",))
    wide = Contender(
        name=WIDE_NUMBA,
        module=numba.module,
        arguments=arguments,
        needs=numba.needs,
        environment={"BENCH_NUMBA_512": "1"},
    )
    return [
        numba,
        *([wide] if machine.has_avx512() else []),
        Contender(name="NumPy, own generator", module="simulation_numpy", arguments=arguments, exact=False),
        Contender(name="NumPy, same integers", module="simulation_philox_numpy", arguments=arguments),
        Contender(
            name="PyTorch, own generator",
            module="simulation_torch",
            arguments=arguments,
            needs=("torch",),
            exact=False,
        ),
    ]


def _two_cores(arguments: tuple[str, ...]) -> list[Contender]:
    return [
        Contender(
            name=f"{name} with {kernel}",
            module=f"simulation_{module}",
            arguments=(*arguments, "--kernel", kernel.lower()),
            needs=(module, kernel.lower()),
            exact=kernel == "Numba",
        )
        for name, module in (("joblib", "joblib"), ("Ray", "ray"))
        for kernel in ("Numba", "NumPy")
    ]


def _goals() -> tuple[Goal, ...]:
    limit = at_most("one slot at most 0.7 ns a sample (on AVX-512)", ONE, LOCAL_1, 0.7, unit="ns", factor=1e9)
    return (
        times_as_fast("one slot at least as fast as Numba with the same integers", ONE, LOCAL_1, NUMBA, 1.0),
        times_as_fast("the same against Numba told to use 512-bit vectors", ONE, LOCAL_1, WIDE_NUMBA, 1.0),
        limit,
        times_as_fast("two slots at least 1.9 times one", TWO, LOCAL_2, LOCAL_1, 1.9),
    )


QUESTION = Question(
    name="simulation",
    title="Simulation",
    about="10^9 samples of the quarter-circle count with exact integers from Philox4x32-10. Nanoseconds a sample, warm "
    "(compiled before). Contenders with the same integers give the same number of hits; it is compared.",
    unit="ns",
    factor=1e9,
    cases=(ONE, TWO),
    contenders=contenders,
    reference=LOCAL_1,
    tolerance=0.0,
    goals=_goals(),
    unfair=(
        "Numba's default target prefers 256-bit vectors on processors with AVX-512; its second row is told otherwise "
        "by environment variables that few would know. Its kernel is written as ours is, to run eight chains at once.",
        "NumPy and PyTorch with their own generators draw other samples, on a coarser grid, which is less work; "
        "they agree statistically only. NumPy's row with the same integers shows what those cost it.",
        "Ray and joblib hand each core one half: no chunks, no ledger, no balance between unlike cores.",
    ),
)
