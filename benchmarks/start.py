"""Start: how long until something happens, from a cold process?"""

from benchmarks.contenders import Contender
from benchmarks.question import Question, Scale, at_most

IMPORT, IRIS = "import", "first fit of Iris"
PHALANX = "phalanx"
MODULES = (PHALANX, "numpy", "jax", "torch", "ray", "distributed", "sklearn")
LIBRARIES = {
    PHALANX: ("phalanx",),
    "jax": ("jax", "optax", "sklearn"),
    "torch": ("torch", "sklearn"),
    "sklearn": ("sklearn",),
}


def contenders(case: str, scale: Scale) -> list[Contender]:
    if case == IMPORT:
        return [
            Contender(
                name=name,
                module="start_import",
                arguments=("--module", name),
                needs=(name,),
                ours=name == PHALANX,
                exact=name != "jax",
            )
            for name in MODULES
        ]
    return [
        Contender(
            name=name,
            module="start_iris",
            arguments=("--library", name),
            needs=needs,
            ours=name == PHALANX,
            exact=False,
        )
        for name, needs in LIBRARIES.items()
    ]


QUESTION = Question(
    name="start",
    title="Start",
    about="Seconds of `import NAME` in a fresh interpreter, and of a first small fit (Iris, 4 -> 8 -> 3, Adam, 40 "
    "epochs) with imports, compiling and whatever it starts. The first round may find files that are not yet cached.",
    unit="s",
    factor=1.0,
    cases=(IMPORT, IRIS),
    contenders=contenders,
    reference=PHALANX,
    tolerance=0.0,
    goals=(at_most("`import phalanx` under 0.3 s, without JAX", IMPORT, PHALANX, 0.3, unit="s", factor=1.0),),
    unfair=(
        "Phalanx starts engine processes, tests their arithmetic and compiles; scikit-learn does none of that.",
        "The whole command also starts and ends the interpreter.",
    ),
    digits=3,
)
