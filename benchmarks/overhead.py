"""Overhead: what does an update cost when there is next to nothing to compute?"""

from benchmarks.contenders import Contender
from benchmarks.question import Question, Scale, at_most

CASE = "a round"
LOCAL_1, LOCAL_2, SOCKET, SOCKETS = "phalanx local(1)", "phalanx local(2)", "phalanx one socket", "phalanx two sockets"
GROWTH = (1, 2, 4, 8)
BATCH = 8
"""Rows; blocks have one row, so that eight members have one each."""


def contenders(case: str, scale: Scale) -> list[Contender]:
    updates = scale.of(3_000, 200)
    placements = {f"phalanx local({n})": f"local:{n}" for n in GROWTH[:2]}
    placements |= {SOCKET: "group:s", "phalanx local + socket": "group:ls", SOCKETS: "group:ss"}
    placements |= {f"phalanx {n} sockets": "group:" + "s" * n for n in GROWTH[2:]}
    size = ("--inputs", "4", "--batch", str(BATCH), "--updates", str(updates))
    ours = [
        Contender(
            name=name,
            module="update_phalanx",
            arguments=(*size, "--placement", placement, "--oversubscribe"),
            needs=("phalanx",),
            ours=True,
            exact=False,
        )
        for name, placement in placements.items()
    ]
    return [*ours, *_peers(("--values", "10", "--repeats", str(updates)))]


def _peers(arguments: tuple[str, ...]) -> list[Contender]:
    modules = {
        "bare pipes": ("pipe", ()),
        "PyTorch Gloo": ("torch", ("torch",)),
        "JAX Gloo": ("jax", ("jax",)),
        "Ray actors": ("ray", ("ray",)),
        "Dask actors": ("dask", ("distributed",)),
    }
    return [
        Contender(name=name, module=f"reduce_{module}", arguments=arguments, needs=needs)
        for name, (module, needs) in modules.items()
    ]


QUESTION = Question(
    name="overhead",
    title="Overhead",
    about="Microseconds an update of a model with ten parameters, by placement (batch 8, float32, blocks of one row), "
    "and of one round trip of ten numbers to two workers in the peers. Four and eight members share two cores.",
    unit="µs",
    factor=1e6,
    cases=(CASE,),
    contenders=contenders,
    reference="bare pipes",
    tolerance=0.0,
    goals=(
        at_most("local(1): at most 100 µs an update", CASE, LOCAL_1, 100, unit="µs", factor=1e6),
        at_most("local(2): at most 100 µs an update", CASE, LOCAL_2, 100, unit="µs", factor=1e6),
        at_most("a socket member: at most 350 µs an update", CASE, SOCKET, 350, unit="µs", factor=1e6),
        at_most("two socket members: at most 350 µs an update", CASE, SOCKETS, 350, unit="µs", factor=1e6),
    ),
    unfair=(
        "A peer's round only moves and adds ten numbers. An update of Phalanx also computes eight gradients, adds them "
        "by the tree, checks the sums against the plan, and makes the update.",
        "An all-reduce ends with the sum on both members; rounds of actors and pipes end with it on the driver.",
    ),
    digits=0,
    show_whole=False,
)
