"""The values that stand for a program outside JAX: artifact, signature, limits and what an inspection found.

Nothing here imports JAX; ``programs`` makes these values and ``program_rules`` judges them.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DTYPES: Mapping[str, tuple[str, int]] = {
    "bool": ("i1", 1),
    "int8": ("i8", 1),
    "int16": ("i16", 2),
    "int32": ("i32", 4),
    "int64": ("i64", 8),
    "uint8": ("ui8", 1),
    "uint16": ("ui16", 2),
    "uint32": ("ui32", 4),
    "uint64": ("ui64", 8),
    "float16": ("f16", 2),
    "bfloat16": ("bf16", 2),
    "float32": ("f32", 4),
    "float64": ("f64", 8),
}
"""Dtypes that may cross a program's boundary: the element type that stands for each in a module, and its bytes."""


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
        return math.prod(self.shape) * DTYPES[self.dtype][1]

    @property
    def module_type(self) -> str:
        """The array's type as StableHLO writes it."""
        return f"tensor<{''.join(f'{size}x' for size in self.shape)}{DTYPES[self.dtype][0]}>"

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ArraySpec":
        """The value that ``dataclasses.asdict`` took apart."""
        shape = tuple(int(size) for size in document["shape"])
        return cls(name=str(document["name"]), shape=shape, dtype=str(document["dtype"]))


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
    def from_document(cls, document: Mapping[str, Any]) -> "Signature":
        """The value that ``dataclasses.asdict`` took apart."""
        inputs, outputs = (tuple(ArraySpec.from_document(item) for item in document[side]) for side in ("inputs", "outputs"))
        return cls(inputs=inputs, outputs=outputs)

    @classmethod
    def from_json(cls, text: str) -> "Signature":
        """The value that ``to_json`` wrote."""
        return cls.from_document(json.loads(text))


@dataclass(frozen=True)
class Artifact:
    """An exported program: what travels."""

    name: str
    data: bytes
    """What ``jax.export`` serialized."""
    digest: str
    """``programs.program_digest(data)``: the same wherever and from whatever source file it was exported."""

    @property
    def content(self) -> str:
        """SHA-256 of the bytes themselves, which names them as a blob."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an artifact may ask for, before anything is compiled."""

    artifact_bytes: int = 64 << 20
    tensor_bytes: int = 4 << 30
    """Of any one tensor that the program names."""
    total_bytes: int = 256 << 30
    """Of the results of all operations together, calls written out. A fused program holds far less at a time."""
    operations: int = 100_000
    """Operations, calls written out: nested calls cannot hide a program that explodes when it is compiled."""
    call_depth: int = 100


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What walking an artifact found; only an accepted one has this."""

    digest: str
    signature: Signature
    operations: int
    largest_tensor: int
    """bytes"""
    total_tensors: int
    """bytes"""

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Inspection":
        """The value that ``dataclasses.asdict`` took apart."""
        return cls(**{**document, "signature": Signature.from_document(document["signature"])})
