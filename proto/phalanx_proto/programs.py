"""Programs as artifacts: a pure function exported as StableHLO, its signature and its digest.

An artifact is untrusted. ``load`` reads what ``jax.export`` wrote around the module and refuses all that is not a plain
one-device program; ``program_rules`` walks the module itself. Both raise ProgramRefused, and both belong in a process
that may be lost: the parsers below them are C++.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import export
from jax.extend.mlir import deserialize_portable_artifact
from jax.interpreters.mlir import make_ir_context

from phalanx_proto.errors import ProgramRefused

PLATFORMS = ("cpu", "cuda")
MAX_ARTIFACT = 64 << 20
"""Bytes of one artifact."""
MODULE_DTYPES = {
    "bool": "i1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "ui8",
    "uint16": "ui16",
    "uint32": "ui32",
    "uint64": "ui64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}
"""Dtypes that may cross a program's boundary, and the element types that stand for them in its module."""


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """One argument or result. The name is for messages: two specs that differ only by name are equal."""

    shape: tuple[int, ...]
    dtype: str
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        label = f"{self.name}: " if self.name else ""
        return f"{label}{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=object)) * jax.numpy.dtype(self.dtype).itemsize

    @property
    def module_type(self) -> str:
        """The array's type as StableHLO writes it."""
        return f"tensor<{''.join(f'{size}x' for size in self.shape)}{MODULE_DTYPES[self.dtype]}>"


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Arrays in and out of a program, in order."""

    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"

    def to_json(self) -> str:
        """Canonical text, read by ``from_json``."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Signature":
        """The value that ``to_json`` wrote."""
        document = json.loads(text)
        sides = ("inputs", "outputs")
        inputs, outputs = (
            tuple(ArraySpec(name=a["name"], shape=tuple(a["shape"]), dtype=a["dtype"]) for a in document[side])
            for side in sides
        )
        return cls(inputs=inputs, outputs=outputs)


@dataclass(frozen=True)
class Artifact:
    """An exported program: what travels."""

    name: str
    data: bytes
    """What ``jax.export`` serialized."""
    digest: str
    """``program_digest(data)``"""


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
    data = bytes(export.export(jax.jit(program), platforms=tuple(platforms))(*arguments).serialize())
    return Artifact(name=name, data=data, digest=program_digest(data, name=name))


def load(data: bytes, *, name: str = "program", max_bytes: int = MAX_ARTIFACT) -> export.Exported:
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
    kept = list(exported.module_kept_var_idx)
    leaves = len(exported.in_avals)
    checks: tuple[tuple[bool, str], ...] = (
        (exported.nr_devices != 1, f"made for {exported.nr_devices} devices; only one-device programs are accepted"),
        ("cpu" not in exported.platforms, f"made for {exported.platforms}, which lacks cpu; export it for cpu as well"),
        (len(set(exported.platforms)) != len(exported.platforms), f"platforms {exported.platforms} repeat"),
        (bool(exported.ordered_effects or exported.unordered_effects), "has effects (callbacks, printing or input)"),
        (bool(exported.disabled_safety_checks), f"disables safety checks: {list(exported.disabled_safety_checks)}"),
        (exported.has_vjp(), "carries a second program (its vjp); serialize with vjp_order=0"),
        (
            any(s is not None for s in (*exported.in_shardings_hlo, *exported.out_shardings_hlo)),
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
            exported.in_tree != jax.tree.structure(((0,) * leaves, {})),
            f"arguments are not a flat list of arrays but {exported.in_tree}",
        ),
        (
            exported.out_tree not in (jax.tree.structure(0), jax.tree.structure((0,) * len(exported.out_avals))),
            f"results are not a flat tuple of arrays but {exported.out_tree}",
        ),
    )
    return next((text for wrong, text in checks if wrong), None) or _array_problem(exported)


def _array_problem(exported: export.Exported) -> str | None:
    for side, avals in (("argument", exported.in_avals), ("result", exported.out_avals)):
        for index, aval in enumerate(avals):
            if str(aval.dtype) not in MODULE_DTYPES:
                return f"{side} {index} has dtype {aval.dtype}, which is not accepted"
            if not all(isinstance(size, int) and size >= 0 for size in aval.shape):
                return f"{side} {index} has the dynamic shape {aval.shape}; export it with fixed shapes"
    return None
