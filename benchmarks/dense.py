"""Dense fixture: how long do 300 updates of a small network take, by placement and beside the peers?"""

from benchmarks import machine
from benchmarks.contenders import Contender
from benchmarks.question import Goal, Question, Scale, fastest_group, times_as_fast

PLAIN, LOCAL_1, LOCAL_2 = "plain JAX", "phalanx local(1)", "phalanx local(2)"
LOCAL_SOCKET, SOCKETS = "phalanx local + socket", "phalanx two sockets"
TORCH, DDP, RAY = "PyTorch", "PyTorch DDP", "Ray actors with JAX"
CASES = ("float32", "float64")
PLACEMENTS = {LOCAL_1: "local:1", LOCAL_2: "local:2", LOCAL_SOCKET: "group:ls", SOCKETS: "group:ss"}
LEAST_TWO_SLOTS = {"float32": 1.4, "float64": 1.6}


def contenders(case: str, scale: Scale) -> list[Contender]:
    arguments = ("--dtype", case, "--epochs", str(scale.of(10, 1)))
    ours = [
        Contender(
            name=name,
            module="dense_phalanx",
            arguments=(*arguments, "--placement", placement),
            needs=("phalanx",),
            ours=True,
        )
        for name, placement in PLACEMENTS.items()
    ]
    torch = Contender(name=TORCH, module="dense_torch", arguments=arguments, needs=("torch",))
    peers = [
        Contender(name=PLAIN, module="dense_jax", arguments=arguments, needs=("jax",)),
        torch,
        Contender(name=DDP, module="dense_ddp", arguments=arguments, needs=("torch",)),
        Contender(name=RAY, module="dense_ray", arguments=arguments, needs=("ray", "jax")),
    ]
    return [*peers[:1], *ours, *peers[1:], *_persuaded(torch)]


def _persuaded(torch: Contender) -> list[Contender]:
    """On AMD, PyTorch once more with its MKL asked for the AVX2 path; elsewhere nothing."""
    if not machine.is_amd():
        return []
    asked = {"MKL_DEBUG_CPU_TYPE": "5", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    return [
        Contender(
            name=f"{TORCH}, MKL asked for AVX2",
            module=torch.module,
            arguments=torch.arguments,
            needs=torch.needs,
            environment=asked,
        )
    ]


def _goals() -> list[Goal]:
    goals = []
    for case in CASES:
        least = LEAST_TWO_SLOTS[case]
        text = f"{case}: local(2) at least {least} times as fast as local(1)"
        goals += [
            times_as_fast(f"{case}: local(1) within 1.3 of plain JAX", case, LOCAL_1, PLAIN, 1 / 1.3),
            times_as_fast(text, case, LOCAL_2, LOCAL_1, least),
            fastest_group(
                f"{case}: a two-member group over gRPC faster than one member alone",
                case,
                (LOCAL_SOCKET, SOCKETS),
                (LOCAL_1,),
            ),
        ]
    for name in (LOCAL_2, LOCAL_SOCKET):
        goals += [
            times_as_fast(f"float32: {name} at least 2 times as fast as PyTorch DDP", "float32", name, DDP, 2.0),
            times_as_fast(f"float32: {name} at least 1.8 times as fast as Ray", "float32", name, RAY, 1.8),
        ]
    return goals


QUESTION = Question(
    name="dense",
    title="Dense fixture",
    about="Synthetic 65,536 x 64 in 4 classes; 45,875 rows train a 64 -> 128 -> 64 -> 4 tanh network (16,836 "
    "parameters) by SGD 0.05 in batches of 1,536 for 10 epochs: 300 updates. Seconds for all of them, warm (compiled "
    "before), without validation; beside it the whole command from start to end.",
    unit="s",
    factor=1.0,
    cases=CASES,
    contenders=contenders,
    reference=PLAIN,
    tolerance=0.05,
    goals=tuple(_goals()),
    unfair=(
        "PyTorch uses its MKL as it is; MKL takes a slower path on AMD, to about 40 % of what the processor can do.",
        "PyTorch runs eagerly, as most of its users do; `torch.compile` needs a C++ compiler on the machine.",
        "Ray and Phalanx share one JAX; Ray is made for larger tasks than half a batch of this network.",
        "Plain JAX and PyTorch keep no ledger, no checks of the sums and no bits that are the same for any placement.",
        "All rows start from the same initial values and the same data. Phalanx orders rows by its own rule, the "
        "peers by NumPy's, so final losses agree closely and not exactly.",
    ),
)
