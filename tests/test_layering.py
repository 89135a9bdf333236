"""Who may import whom, how long things may be, and what they may not be called (DESIGN, section 8).

Each rule is a function from source text to the faults found; each has a test on text that breaks it.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "phalanx_proto": "proto",
    "phalanx_worker": "worker",
    "phalanx_coordinator": "coordinator",
    "phalanx": "client",
}
OTHER_FOLDERS = ("tests", "benchmarks", "deploy")

# For each package, the modules of the other packages that it may import; what lies below a module comes with it.
ALLOWED = {
    "phalanx_proto": (),
    "phalanx_worker": ("phalanx_proto",),
    "phalanx_coordinator": (
        "phalanx_proto",
        "phalanx_worker.pool",
        "phalanx_worker.inventory",
        "phalanx_worker.allocation",
        "phalanx_worker.accelerators",
        "phalanx_worker.environment",
    ),
    "phalanx": ("phalanx_proto",),
}
# The embedded default is the one module of the client that knows the coordinator.
ALLOWED_IN_MODULE = {"phalanx.embedded": ("phalanx_coordinator",)}

# Inside the coordinator: each package, or module beside them, knows only those before it.
COORDINATOR = (
    "cancellation", "engines_here", "waiting", "cluster", "ssh", "members", "doctor", "enroll", "checkpoints", "lockstep",
    "runs", "job_directory", "session", "jobs", "service",
)  # fmt: skip

LOADS_GRPC = "phalanx_proto.rpc"
"""The one module that loads gRPC; others have it from there."""
FAMILIES = {
    "grpc": ("grpc", "grpc_health", "grpc_reflection", "grpc_status"),
    "jax": ("jax", "jaxlib", "optax"),
}
VAGUE_NAMES = {"utils", "util", "misc", "common", "helpers", "helper", "manager"}
FILE_LINES = 300
FUNCTION_LINES = 60


def is_generated(path: Path) -> bool:
    return "_pb2" in path.name


def module_name(path: Path, root: Path) -> str:
    """``root/phalanx_worker/engine.py`` is ``phalanx_worker.engine``; an ``__init__.py`` is its package."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_sources() -> dict[str, str]:
    """Module name to text, for each module of the four packages that a person wrote."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted((ROOT / folder / package).rglob("*.py")):
            if not is_generated(path):
                name = module_name(path, ROOT / folder)
                found[f"{name}.__init__" if path.name == "__init__.py" else name] = path.read_text("utf-8")
    return found


def all_files() -> list[Path]:
    """Every Python file that a person wrote, relative to the repository."""
    folders = (*PACKAGES.values(), *OTHER_FOLDERS)
    found = (path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if not is_generated(path))


def absolute(module: str, node: ast.ImportFrom) -> str:
    """The module that ``from … import`` names, with leading dots resolved against ``module``."""
    if not node.level:
        return node.module or ""
    base = module.split(".")[: -node.level]
    return ".".join([*base, node.module] if node.module else base)


def called_imports(node: ast.Call) -> list[str]:
    """What ``importlib.import_module("x")`` or ``__import__("x")`` imports."""
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    first = node.args[0] if node.args else None
    if name in {"import_module", "__import__"} and isinstance(first, ast.Constant) and isinstance(first.value, str):
        return [first.value]
    return []


def imports(module: str, text: str) -> Iterator[tuple[str, ...]]:
    """Each import in ``text``, also inside functions, as the dotted names that it may stand for.

    ``from a import b`` is ``("a.b", "a")``: ``b`` may be a module or a name inside ``a``.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name,) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = absolute(module, node)
            yield from ((f"{origin}.{alias.name}", origin) for alias in node.names)
        elif isinstance(node, ast.Call):
            yield from ((name,) for name in called_imports(node))


def is_below(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def forbidden_imports(module: str, text: str) -> list[str]:
    """Imports of another package of ours that ``module`` may not know."""
    package = module.split(".")[0]
    allowed = (package, *ALLOWED[package], *ALLOWED_IN_MODULE.get(module, ()))
    return [
        f"{module} imports {names[0]}"
        for names in imports(module, text)
        if names[0].split(".")[0] in PACKAGES and not any(is_below(name, known) for name in names for known in allowed)
    ]


def upward_imports(module: str, text: str) -> list[str]:
    """Imports inside the coordinator that go from a package to one that comes after it."""
    part = module.split(".")[1]
    found = (name.split(".") for names in imports(module, text) for name in names)
    known = {name[1] for name in found if name[0] == "phalanx_coordinator" and len(name) > 1} & set(COORDINATOR)
    return [f"{module} imports {other}" for other in known if COORDINATOR.index(other) > COORDINATOR.index(part)]


def families(module: str, text: str) -> set[str]:
    """Which of gRPC and JAX a module imports; generated service code counts as gRPC."""
    names = [name for group in imports(module, text) for name in group]
    found = {family for family, roots in FAMILIES.items() if any(name.split(".")[0] in roots for name in names)}
    ours = any(is_below(name, LOADS_GRPC) or name.endswith("_pb2_grpc") or "_pb2_grpc." in name for name in names)
    return found | ({"grpc"} if ours else set())


def vague_parts(path: Path) -> list[str]:
    """The parts of a path that say nothing about what is inside."""
    return [part for part in path.with_suffix("").parts if part in VAGUE_NAMES]


def long_functions(text: str, limit: int = FUNCTION_LINES) -> list[str]:
    """Functions of more than ``limit`` lines, from ``def`` to the end; decorators are not counted."""
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    lengths = [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions]
    return [f"{name} has {length} lines" for name, length in lengths if length > limit]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_seen(package: str) -> None:
    assert f"{package}.__init__" in package_sources()
    assert Path(PACKAGES[package], package, "__init__.py") in all_files()


def test_imports_follow_the_layers() -> None:
    assert [fault for module, text in package_sources().items() for fault in forbidden_imports(module, text)] == []


def test_imports_in_the_coordinator_go_down() -> None:
    inside = {name: text for name, text in package_sources().items() if name.startswith("phalanx_coordinator.")}
    del inside["phalanx_coordinator.__init__"]
    assert {name.split(".")[1] for name in inside} == set(COORDINATOR)
    assert [fault for name, text in inside.items() for fault in upward_imports(name, text)] == []


def test_a_module_imports_grpc_or_jax() -> None:
    assert [module for module, text in package_sources().items() if len(families(module, text)) > 1] == []


def test_one_module_loads_grpc() -> None:
    direct = {
        module: [name for group in imports(module, text) for name in group if name.split(".")[0] == "grpc"]
        for module, text in package_sources().items()
    }
    assert [module for module, names in direct.items() if names] == [LOADS_GRPC]


def test_names_say_what_is_inside() -> None:
    assert [path.as_posix() for path in all_files() if vague_parts(path)] == []


def test_files_are_short() -> None:
    lengths = {path.as_posix(): len((ROOT / path).read_text("utf-8").splitlines()) for path in all_files()}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES and not name.startswith("tests/")} == {}


def test_functions_are_short() -> None:
    found = {path.as_posix(): long_functions((ROOT / path).read_text("utf-8")) for path in all_files()}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_the_client_is_thin() -> None:
    code = "import sys, phalanx; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(result.stdout.split())
    assert "phalanx" in loaded
    assert loaded & {"jax", "jaxlib", "grpc", "phalanx_coordinator"} == set()


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("phalanx_proto.order", "import phalanx_worker"),
        ("phalanx_proto.order", "from phalanx import fit"),
        ("phalanx_worker.engine", "import phalanx_coordinator.runs"),
        ("phalanx_worker.engine", "def f():\n    from phalanx_coordinator.runs import fit"),
        ("phalanx_coordinator.runs.fit", "import phalanx_worker"),
        ("phalanx_coordinator.runs.fit", "from phalanx_worker import engine"),
        ("phalanx_coordinator.runs.fit", "from phalanx_worker.engine import Engine"),
        ("phalanx_coordinator.runs.fit", "import phalanx_worker.pools"),
        ("phalanx_coordinator.runs.fit", "import importlib\nimportlib.import_module('phalanx_worker.engine')"),
        ("phalanx.api", "import phalanx_coordinator"),
        ("phalanx.api", "if TYPE_CHECKING:\n    from phalanx_coordinator.runs.fit import Fit"),
        ("phalanx.embedded", "from phalanx_worker.pool import Pool"),
        ("phalanx.__init__", "__import__('phalanx_coordinator')"),
        ("phalanx.data.arrays", "from .. import api\nfrom phalanx_worker import pool"),
    ],
)
def test_a_forbidden_import_is_found(module: str, text: str) -> None:
    assert len(forbidden_imports(module, text)) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("phalanx_proto.order", "import numpy\nfrom . import philox\nfrom .philox import words"),
        ("phalanx_worker.engine", "from phalanx_proto import reduction\nfrom phalanx_worker.lowering import lower"),
        ("phalanx_coordinator.runs.fit", "from phalanx_worker import pool, inventory"),
        ("phalanx_coordinator.runs.fit", "from phalanx_worker.pool import Pool\nimport phalanx_worker.inventory"),
        ("phalanx.embedded", "from phalanx_coordinator.runs.fit import fit"),
        ("phalanx.__init__", "from .api import fit\nfrom phalanx.model import mlp"),
    ],
)
def test_an_allowed_import_is_not_a_fault(module: str, text: str) -> None:
    assert forbidden_imports(module, text) == []


@pytest.mark.parametrize(
    ("module", "text", "faults"),
    [
        ("phalanx_coordinator.ssh.relay", "from phalanx_coordinator.runs.fit import FitRun", 1),
        ("phalanx_coordinator.ssh.relay", "def f():\n    from phalanx_coordinator import session", 1),
        ("phalanx_coordinator.session", "import phalanx_coordinator.jobs.keeper", 1),
        ("phalanx_coordinator.runs.fit", "from . import plan\nfrom ..ssh import command", 0),
        ("phalanx_coordinator.jobs.keeper", "from phalanx_coordinator.session import Coordinator", 0),
    ],
)
def test_an_upward_import_is_found(module: str, text: str, faults: int) -> None:
    assert len(upward_imports(module, text)) == faults


@pytest.mark.parametrize(
    "text",
    [
        "import grpc\nimport jax",
        "import grpc.aio\ndef f():\n    from jax import numpy",
        "from phalanx_proto.v1 import engine_service_pb2_grpc\nimport jaxlib",
        "from phalanx_proto.v1.engine_service_pb2_grpc import EngineServiceStub\nimport jax.numpy as jnp",
    ],
)
def test_grpc_beside_jax_is_found(text: str) -> None:
    assert families("phalanx_worker.engine", text) == {"grpc", "jax"}


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("import grpc\nfrom phalanx_proto.v1 import tensor_pb2, x_service_pb2_grpc", {"grpc"}),
        ("import jax\nfrom phalanx_proto.v1 import tensor_pb2", {"jax"}),
        ("from phalanx_proto.rpc import aio", {"grpc"}),
        ("import numpy", set()),
    ],
)
def test_one_family_is_no_fault(text: str, family: set[str]) -> None:
    assert families("phalanx_worker.engine", text) == family


def test_relative_imports_resolve_against_their_package() -> None:
    assert list(imports("a.b.c", "from . import d\nfrom .e import f\nfrom ..g import h")) == [
        ("a.b.d", "a.b"),
        ("a.b.e.f", "a.b.e"),
        ("a.g.h", "a.g"),
    ]
    assert list(imports("a.b.__init__", "from .c import d")) == [("a.b.c.d", "a.b.c")]


def test_a_vague_name_is_found() -> None:
    assert vague_parts(Path("client/phalanx/utils.py")) == ["utils"]
    assert vague_parts(Path("worker/phalanx_worker/common/arena.py")) == ["common"]
    assert vague_parts(Path("client/phalanx/uncommon.py")) == []


def test_a_long_function_is_found() -> None:
    body = "\n".join(["    pass"] * 3)
    assert long_functions(f"@mark(\n1,\n2)\ndef short():\n{body}", limit=4) == []
    assert long_functions(f"class A:\n  async def f(self):\n{body}\n    pass\n\ndef f():\n    pass", limit=4) == [
        "f has 5 lines"
    ]


def test_generated_code_is_not_read() -> None:
    assert is_generated(Path("a/tensor_pb2.py"))
    assert is_generated(Path("a/x_service_pb2_grpc.py"))
    assert not is_generated(Path("a/tensors.py"))
