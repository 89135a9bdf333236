"""What an untrusted program may contain: its operation tree is walked, never its text.

``inspect_module`` runs in a disposable process, for the parser below it is C++ and its input is hostile. What passes is
a closed set of pure StableHLO operations on static arrays of bounded size, with one entry point and no recursion.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from jax import export
from jax.extend.mlir import ir

from phalanx_proto.artifacts import DTYPES, Inspection, Limits, Signature
from phalanx_proto.errors import ProgramRefused
from phalanx_proto.programs import digest_of, load, main_types, parse_module, signature_of


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STABLEHLO = _names(
    """abs add and atan2 bitcast_convert broadcast broadcast_in_dim case cbrt ceil cholesky clamp compare complex
    composite concatenate constant convert convolution cosine count_leading_zeros custom_call divide dot dot_general
    dynamic_slice dynamic_update_slice exponential exponential_minus_one fft floor gather if imag iota is_finite log
    log_plus_one logistic map maximum minimum multiply negate not optimization_barrier or pad popcnt power real reduce
    reduce_precision reduce_window remainder reshape return reverse rng_bit_generator round_nearest_afz
    round_nearest_even rsqrt scatter select select_and_scatter shift_left shift_right_arithmetic shift_right_logical
    sign sine slice sort sqrt subtract tan tanh transpose triangular_solve while xor"""
)
_OPERATIONS = frozenset(
    {"builtin.module", "func.func", "func.call", "func.return", "sdy.mesh", "sdy.sharding_constraint"}
    | {f"stablehlo.{name}" for name in _STABLEHLO}
)
_OUTSIDE = _names("infeed outfeed send recv after_all create_token async_start async_done")
_COLLECTIVE = _names(
    """all_gather all_reduce all_to_all collective_broadcast collective_permute cross-replica-sum partition_id
    reduce_scatter replica_id"""
)
CUSTOM_CALLS = frozenset({"shape_assertion", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
"""Targets that stand for no code of their own: XLA takes them out."""
_MARKS = _names(
    """jax.arg_info jax.global_constant jax.result_info jax.uses_shape_polymorphism mhlo.num_partitions
    mhlo.num_replicas mhlo.sharding sdy.sharding"""
)
"""Attributes with a dialect's prefix that may stay; the others can carry instructions for a compiler."""
_COMPOSITE = re.compile(r"chlo\.\w+")
_ELEMENT_BYTES = {element: size for element, size in DTYPES.values()} | {"complex<f32>": 8, "complex<f64>": 16}


def inspect_module(
    data: bytes, limits: Limits | None = None, *, name: str = "program", expected: Signature | None = None
) -> Inspection:
    """Judge one artifact; raises ProgramRefused that names program, operation and reason. Compiles nothing."""
    limits = limits or Limits()
    exported = load(data, name=name, max_bytes=limits.artifact_bytes)
    signature = signature_of(exported)
    if expected is not None and signature != expected:
        raise ProgramRefused(f"program {name!r}: its signature is {signature}, wanted {expected}")
    module = parse_module(exported, name)
    walk = _Walk(name=name, limits=limits)
    try:
        walk.module(module.operation, exported)
        operations, total = walk.written_out("main")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # an attribute that is not of the kind its operation needs; the parser lets it through
        raise ProgramRefused(f"program {name!r}: its module is malformed: {error}") from error
    return Inspection(
        digest=digest_of(exported, module),
        signature=signature,
        operations=operations,
        largest_tensor=walk.largest,
        total_tensors=total,
    )


@dataclass
class _Function:
    """One function's own cost, and how often it calls others."""

    operations: int = 0
    total: int = 0
    calls: Counter[str] = field(default_factory=Counter)


@dataclass
class _Walk:
    """One pass over a module. Stops at the first thing that is not allowed."""

    name: str
    limits: Limits
    largest: int = 0
    visited: int = 0
    functions: dict[str, _Function] = field(default_factory=dict)

    def refuse(self, operation: str, reason: str) -> NoReturn:
        raise ProgramRefused(f"program {self.name!r}: operation {operation}: {reason}")

    def module(self, module: Any, exported: export.Exported) -> None:
        self.attributes(module, _Function())
        for part in _operations(module):
            if part.name == "func.func":
                self.function(part, exported)
            elif part.name != "sdy.mesh":
                self.refuse(part.name, "does not belong at the top of a module")
        if "main" not in self.functions:
            raise ProgramRefused(f"program {self.name!r}: has no function main")

    def function(self, function: Any, exported: export.Exported) -> None:
        symbol = ir.StringAttr(function.attributes["sym_name"]).value
        label = f"func.func @{symbol}"
        blocks = list(function.regions[0].blocks)
        if not blocks:
            self.refuse(label, "has no body, so its code would come from outside")
        types = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        if symbol == "main":
            self.entry(label, types, exported)
        own = self.functions[symbol] = _Function()
        self.attributes(function, own)
        pending = [function]
        while pending:
            outer = pending.pop()
            for region in outer.regions:
                for block in region.blocks:
                    for argument in block.arguments:
                        self.tensor(outer.name, argument.type)
                    for operation in block.operations:
                        self.operation(operation.operation, own)
                        pending.append(operation.operation)

    def entry(self, label: str, types: Any, exported: export.Exported) -> None:
        """The module's main must be what the envelope around it promises."""
        arguments, results = main_types(exported)
        found = [str(item) for item in types.inputs]
        if len(exported.platforms) > 1 and found[:1] in (["tensor<i64>"], ["tensor<i32>"]):
            found = found[1:]
        if found != arguments or [str(item) for item in types.results] != results:
            self.refuse(label, f"has type {types}, but the artifact says {arguments} -> {results}")

    def operation(self, operation: Any, own: _Function) -> None:
        name = operation.name
        if name not in _OPERATIONS and not name.startswith("chlo."):
            self.refuse(name, _why_not(name))
        if name in ("func.func", "builtin.module"):
            self.refuse(name, "may not be nested")
        self.visited += 1
        own.operations += 1
        if self.visited > self.limits.operations:
            self.refuse(name, f"is one too many; at most {self.limits.operations} operations are accepted")
        if name == "stablehlo.custom_call":
            self.custom_call(operation)
        self.attributes(operation, own)
        for result in operation.results:
            own.total += self.tensor(name, result.type)
        if name == "stablehlo.composite":
            label = ir.StringAttr(operation.attributes["name"]).value
            if not _COMPOSITE.fullmatch(label):
                self.refuse(name, f"is named {label!r}; only those of chlo are accepted")

    def custom_call(self, operation: Any) -> None:
        target = ir.StringAttr(operation.attributes["call_target_name"]).value
        if target not in CUSTOM_CALLS:
            self.refuse(
                f"stablehlo.custom_call @{target}",
                "calls code outside the program (a callback, a foreign function or a library kernel); "
                "write that step in plain JAX operations",
            )

    def tensor(self, operation: str, kind: Any) -> int:
        """Bytes of one value; only static ranked arrays pass."""
        if not isinstance(kind, ir.RankedTensorType):
            self.refuse(operation, f"has a value of type {kind}; only arrays of fixed shape are accepted")
        if not kind.has_static_shape or kind.encoding is not None:
            self.refuse(operation, f"has a value of the dynamic type {kind}; export it with fixed shapes")
        element = _ELEMENT_BYTES.get(str(kind.element_type))
        if element is None:
            self.refuse(operation, f"has a value of type {kind}, whose elements are not accepted")
        size = element
        for extent in kind.shape:
            size *= extent
        self.largest = max(self.largest, size)
        if size > self.limits.tensor_bytes:
            self.refuse(operation, f"has a value of {kind}: {size} bytes; at most {self.limits.tensor_bytes} are accepted")
        return size

    def attributes(self, operation: Any, own: _Function) -> None:
        found = operation.attributes
        for index in range(len(found)):
            self.attribute(operation.name, found[index].name, found[index].attr, own)

    def attribute(self, operation: str, key: str, root: Any, own: _Function) -> None:
        """One attribute with all that it holds: marks, references to functions, types."""
        pending = [(key, root)]
        while pending:
            key, value = pending.pop()
            if "." in key and key not in _MARKS:
                self.refuse(operation, f"carries the attribute {key!r}, which is not accepted")
            if key in ("mhlo.num_partitions", "mhlo.num_replicas") and ir.IntegerAttr(value).value != 1:
                self.refuse(operation, f"{key} is {value}; only one-device programs are accepted")
            if isinstance(value, ir.DictAttr):
                pending += [(value[index].name, value[index].attr) for index in range(len(value))]
            elif isinstance(value, ir.ArrayAttr):
                pending += [("", item) for item in value]
            elif isinstance(value, ir.FlatSymbolRefAttr):
                own.calls[value.value] += 1
            elif isinstance(value, ir.SymbolRefAttr):
                self.refuse(operation, f"refers to {value}, which is not a function of the module")

    def written_out(self, entry: str) -> tuple[int, int]:
        """Operations and bytes of ``entry`` with every call written out; refuses recursion."""
        done: dict[str, tuple[int, int]] = {}

        def cost(symbol: str, callers: tuple[str, ...]) -> tuple[int, int]:
            if symbol in done or symbol not in self.functions:
                return done.get(symbol, (0, 0))
            if symbol in callers or len(callers) > self.limits.call_depth:
                problem = "calls itself" if symbol in callers else f"is called over {self.limits.call_depth} levels"
                self.refuse(f"func.func @{symbol}", problem)
            own = self.functions[symbol]
            operations, total = own.operations, own.total
            for callee, times in own.calls.items():
                inner = cost(callee, (*callers, symbol))
                operations, total = operations + times * inner[0], total + times * inner[1]
            done[symbol] = operations, total
            return done[symbol]

        operations, total = cost(entry, ())
        if operations > self.limits.operations:
            self.refuse(f"func.func @{entry}", f"grows to {operations} operations; limit {self.limits.operations}")
        if total > self.limits.total_bytes:
            self.refuse(f"func.func @{entry}", f"names {total} bytes of arrays; limit {self.limits.total_bytes}")
        return operations, total


def _operations(parent: Any) -> Iterator[Any]:
    for region in parent.regions:
        for block in region.blocks:
            for operation in block.operations:
                yield operation.operation


def _why_not(name: str) -> str:
    dialect, _, short = name.partition(".")
    if dialect not in ("builtin", "func", "stablehlo", "chlo", "sdy"):
        return f"dialect {dialect!r} is not accepted"
    if short in _OUTSIDE:
        return "talks to the world outside the program"
    if short in _COLLECTIVE:
        return "needs other devices; only one-device programs are accepted"
    if "dynamic" in short or short.endswith("dimension_size"):
        return "has dynamic shapes; export it with fixed shapes"
    return "is not an accepted operation"
