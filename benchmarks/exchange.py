"""Exchange: what does an update cost when the parameters are large?"""

from benchmarks.contenders import Contender
from benchmarks.question import Question, Scale, at_most

CASE = "an exchange"
LOCAL_2, LOCAL_SOCKET, SOCKETS = "phalanx local(2)", "phalanx local + socket", "phalanx two sockets"
PLACEMENTS = {"phalanx local(1)": "local:1", LOCAL_2: "local:2", LOCAL_SOCKET: "group:ls", SOCKETS: "group:ss"}
INPUTS, HIDDEN = 4_997, 5_000
"""4,997 -> 5,000 -> 2: 25,000,002 parameters."""


def contenders(case: str, scale: Scale) -> list[Contender]:
    inputs, hidden = scale.of(INPUTS, 497), scale.of(HIDDEN, 500)
    repeats = str(scale.of(20, 3))
    size = ("--inputs", str(inputs), "--hidden", str(hidden), "--batch", "2", "--updates", repeats)
    ours = [
        Contender(
            name=name,
            module="update_phalanx",
            arguments=(*size, "--placement", placement),
            needs=("phalanx",),
            ours=True,
            exact=False,
        )
        for name, placement in PLACEMENTS.items()
    ]
    arguments = ("--values", str(scale.of(25_000_000, 250_000)), "--repeats", repeats)
    peers = {
        "PyTorch Gloo": ("torch", "torch"),
        "JAX Gloo": ("jax", "jax"),
        "Ray actors": ("ray", "ray"),
        "Dask actors": ("dask", "distributed"),
    }
    return ours + [
        Contender(name=name, module=f"reduce_{module}", arguments=arguments, needs=(need,))
        for name, (module, need) in peers.items()
    ]


QUESTION = Question(
    name="exchange",
    title="Exchange",
    about="Seconds an update of a model with 25,000,002 parameters in float32 and two members (100 MB down, 200 MB of "
    "Float64 sums up each; batch of two rows), and seconds an all-reduce, or a round to two actors, of 100 MB.",
    unit="s",
    factor=1.0,
    cases=(CASE,),
    contenders=contenders,
    reference="PyTorch Gloo",
    tolerance=0.0,
    goals=(
        at_most("local(2): at most 0.12 s an update", CASE, LOCAL_2, 0.12, unit="s", factor=1.0),
        at_most("two socket members: at most 0.35 s an update", CASE, SOCKETS, 0.35, unit="s", factor=1.0),
        at_most("local + socket: at most 0.35 s an update", CASE, LOCAL_SOCKET, 0.35, unit="s", factor=1.0),
    ),
    unfair=(
        "A peer only adds float32 numbers. An update of Phalanx also computes two gradients of 25 million numbers, "
        "sums in Float64 (twice the bytes) and updates the parameters.",
        "Ray's actors share memory on one machine; between machines they would not.",
        "GB/s counts 100 MB down and 200 MB up for each of two members for Phalanx, 100 MB up and down for actors.",
    ),
    digits=3,
    show_whole=False,
    columns=(
        ("gigabytes_a_second", "GB/s"),
        ("coordinator_mib", "coordinator, MiB"),
        ("child_mib", "largest child, MiB"),
    ),
)
