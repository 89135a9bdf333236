"""Programs as artifacts: a pure function exported as StableHLO, its signature and its digest.

An artifact is untrusted. ``load`` reads what ``jax.export`` wrote around the module and refuses all that is not a plain
one-device program; ``program_rules`` walks the module itself. Both raise ProgramRefused, and both belong in a process
that may be lost: the parsers below them are C++.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import export
from jax.extend.mlir import deserialize_portable_artifact
from jax.interpreters.mlir import make_ir_context

from phalanx_proto.artifacts import DTYPES, ArraySpec, Artifact, Limits, Signature
from phalanx_proto.errors import ProgramRefused

PLATFORMS = ("cpu", "cuda")
FRAMES = "jax_traceback_in_locations_limit"
"""JAX's setting: stack frames that an operation's location names."""
_SHARDINGS = ("in_shardings_hlo", "out_shardings_hlo", "_in_named_shardings", "_out_named_shardings")


def export_program(
    name: str,
    function: Callable[..., Any],
    arguments: Sequence[jax.ShapeDtypeStruct],
    platforms: Sequence[str] = PLATFORMS,
) -> Artifact:
    """Lower ``function(*arguments)``, which returns an array or a flat tuple of arrays, for all ``platforms``.

    The module is named after the program, not the function: equal computations have equal digests in every process.
    """

    def program(*values: Any) -> Any:
        return function(*values)

    program.__name__ = program.__qualname__ = re.sub(r"\W", "_", name)
    with _without_source_paths():
        data = bytes(export.export(jax.jit(program), platforms=tuple(platforms))(*arguments).serialize())
    return Artifact(name=name, data=data, digest=program_digest(data, name=name))


@contextlib.contextmanager
def _without_source_paths() -> Iterator[None]:
    """Artifacts hold no file names of the machine that made them, and come out smaller."""
    before = getattr(jax.config, FRAMES)
    jax.config.update(FRAMES, 0)
    try:
        yield
    finally:
        jax.config.update(FRAMES, before)


def shapes_of(signature: Signature) -> list[jax.ShapeDtypeStruct]:
    """The arguments of ``export_program`` for a program with this signature."""
    make: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct
    return [make(argument.shape, argument.dtype) for argument in signature.inputs]


def load(data: bytes, *, name: str = "program", max_bytes: int = Limits.artifact_bytes) -> export.Exported:
    """Read an artifact; raises ProgramRefused unless it is one plain program for one device. Compiles nothing.

    This does not look at the operations: ``program_rules.inspect_module`` does.
    """
    if len(data) > max_bytes:
        raise ProgramRefused(f"program {name!r}: {len(data)} bytes; at most {max_bytes} are accepted")
    try:
        exported = export.deserialize(bytearray(data))
        problem = _envelope_problem(exported)
    except Exception as error:  # whatever a forged table makes the reader trip over
        raise ProgramRefused(
            f"program {name!r}: not readable as an exported program ({type(error).__name__}: {error}); "
            "export it again with the oldest jax of the group"
        ) from error
    if problem:
        raise ProgramRefused(f"program {name!r}: {problem}")
    return exported


def signature_of(exported: export.Exported) -> Signature:
    """Shapes and dtypes in and out."""

    def side(avals: Sequence[Any]) -> tuple[ArraySpec, ...]:
        return tuple(ArraySpec(shape=tuple(aval.shape), dtype=str(aval.dtype)) for aval in avals)

    return Signature(inputs=side(exported.in_avals), outputs=side(exported.out_avals))


def parse_module(exported: export.Exported, name: str = "program") -> Any:
    """The program's MLIR module, verified, in a context of its own; raises ProgramRefused."""
    try:
        with make_ir_context():
            module = deserialize_portable_artifact(exported.mlir_module_serialized)
            module.operation.verify()
    except Exception as error:  # the parser raises ValueError, MLIRError and others of its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ProgramRefused(f"program {name!r}: its module cannot be parsed: {reason}") from error
    return module


def digest_of(exported: export.Exported, module: Any) -> str:
    """SHA-256 of the module text without debug info, and of all else that decides what the program computes."""
    frame = {
        "signature": json.loads(signature_of(exported).to_json()),
        "kept": list(exported.module_kept_var_idx),
        "platforms": list(exported.platforms),
        "convention": exported.calling_convention_version,
        "constants": exported.uses_global_constants,
    }
    text = module.operation.get_asm(enable_debug_info=False, assume_verified=True)
    found = hashlib.sha256(json.dumps(frame, sort_keys=True, separators=(",", ":")).encode())
    found.update(b"\0" + text.encode())
    return found.hexdigest()


def program_digest(data: bytes, *, name: str = "program") -> str:
    """The digest that names an artifact; source paths and byte layout do not enter it. Raises ProgramRefused."""
    exported = load(data, name=name)
    return digest_of(exported, parse_module(exported, name))


def main_types(exported: export.Exported) -> tuple[list[str], list[str]]:
    """Argument and result types that the module's ``main`` must have, after any platform index."""
    signature = signature_of(exported)
    kept = [signature.inputs[index].module_type for index in exported.module_kept_var_idx]
    return kept, [spec.module_type for spec in signature.outputs]


def _envelope_problem(exported: export.Exported) -> str | None:
    """What is wrong around the module, in words; None if nothing is."""
    kept, leaves = list(exported.module_kept_var_idx), len(exported.in_avals)
    given: Any = exported.in_tree
    returned: Any = exported.out_tree
    checks: tuple[tuple[bool, str], ...] = (
        (exported.nr_devices != 1, f"made for {exported.nr_devices} devices; only one-device programs are accepted"),
        ("cpu" not in exported.platforms, f"made for {exported.platforms}, which lacks cpu; export it for cpu as well"),
        (len(set(exported.platforms)) != len(exported.platforms), f"platforms {exported.platforms} repeat"),
        (bool(exported.ordered_effects or exported.unordered_effects), "has effects (callbacks, printing or input)"),
        (bool(exported.disabled_safety_checks), f"disables safety checks: {list(exported.disabled_safety_checks)}"),
        (exported.has_vjp(), "carries a second program (its vjp); serialize with vjp_order=0"),
        (
            any(mark is not None for field in _SHARDINGS for mark in getattr(exported, field, ())),
            "carries shardings; only one-device programs are accepted",
        ),
        (
            not export.minimum_supported_calling_convention_version
            <= exported.calling_convention_version
            <= export.maximum_supported_calling_convention_version,
            f"calling convention {exported.calling_convention_version} is not known to jax {jax.__version__}",
        ),
        (
            kept != sorted(set(kept)) or any(not 0 <= index < leaves for index in kept),
            f"argument indices {kept} do not fit {leaves} arguments",
        ),
        (
            given != jax.tree.structure(((0,) * leaves, {})),
            f"arguments are not a flat list of arrays but {given}",
        ),
        (
            returned not in (jax.tree.structure(0), jax.tree.structure((0,) * len(exported.out_avals))),
            f"results are not a flat tuple of arrays but {returned}",
        ),
    )
    return next((text for wrong, text in checks if wrong), None) or _array_problem(exported)


def _array_problem(exported: export.Exported) -> str | None:
    for side, avals in (("argument", exported.in_avals), ("result", exported.out_avals)):
        for index, aval in enumerate(avals):
            if str(aval.dtype) not in DTYPES:
                return f"{side} {index} has dtype {aval.dtype}, which is not accepted"
            if not all(isinstance(size, int) and size >= 0 for size in aval.shape):
                return f"{side} {index} has the dynamic shape {aval.shape}; export it with fixed shapes"
    return None
