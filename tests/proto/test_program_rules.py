"""Hostile programs that the parser survives; those that may end the process are tests of the inspector."""

import dataclasses
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.experimental import io_callback
from jax.extend.mlir import ir, serialize_portable_artifact
from jax.interpreters.mlir import make_ir_context

from phalanx_proto import program_rules
from phalanx_proto.artifacts import ArraySpec, Limits, Signature
from phalanx_proto.errors import ProgramRefused
from phalanx_proto.program_rules import inspect_module

VECTOR: Any = jax.ShapeDtypeStruct((4,), jnp.float32)
UNCHANGED = "func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"


def exported(function: Callable[..., Any] = lambda x: x * 2, *arguments: Any, **options: Any) -> export.Exported:
    options.setdefault("platforms", ("cpu",))
    return export.export(jax.jit(function), **options)(*(arguments or (VECTOR,)))


def forge(text: str, *, module: str = "", **fields: Any) -> bytes:
    """An artifact of one float32[4] argument and result around any module."""
    with make_ir_context():
        parsed = ir.Module.parse(module or f"module @forged {{ {text} }}")
        data = serialize_portable_artifact(str(parsed), "1.13.0")
    fields = {"mlir_module_serialized": data, "module_kept_var_idx": (0,), **fields}
    return bytes(dataclasses.replace(exported(), **fields).serialize())


def aside(line: str, result: str = "") -> str:
    """A module whose main calls a function of one line, which defines %r; the parser drops what nobody uses."""
    value = f"%r : {result}" if result else ""
    name = "%unused = " if result else ""
    return (
        f"func.func private @aside(%x: tensor<4xf32>) -> ({result}) {{ {line} return {value} }} "
        f"func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{ {name}call @aside(%x) : (tensor<4xf32>) -> "
        f"({result}) return %x : tensor<4xf32> }}"
    )


def refusal(data: bytes, limits: Limits | None = None, expected: Signature | None = None) -> str:
    with pytest.raises(ProgramRefused) as caught:
        inspect_module(data, limits, name="gradient", expected=expected)
    assert caught.value.message.startswith("program 'gradient': ")
    return caught.value.message


def test_a_plain_module_passes() -> None:
    found = inspect_module(forge(UNCHANGED))
    assert (found.operations, found.largest_tensor, found.total_tensors) == (1, 16, 0)


def test_ordinary_jax_passes() -> None:
    def rich(x: Any) -> tuple[Any, ...]:
        key = jax.random.wrap_key_data(lax.bitcast_convert_type(x[:2], jnp.uint32))
        looped = lax.fori_loop(0, 3, lambda _, value: value * 2, x)
        chosen = lax.cond(x[0] > 0, jnp.sin, jax.nn.relu, looped)
        noise = jax.random.normal(key, (3,), jnp.float32)
        return chosen, noise, jnp.sort(x), lax.top_k(x, 2)[0], jax.scipy.special.erf(x), jnp.fft.fft(x).real

    found = inspect_module(bytes(exported(rich, platforms=("cpu", "cuda")).serialize()))
    assert found.operations > 100


OPERATIONS = {
    "infeed": (
        "",
        '%t = stablehlo.create_token : !stablehlo.token %r:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) '
        "-> (tensor<4xf32>, !stablehlo.token)",
        "create_token: talks to the world outside",
    ),
    "outfeed": (
        "",
        '%t = stablehlo.after_all : !stablehlo.token %r = "stablehlo.outfeed"(%x, %t) : '
        "(tensor<4xf32>, !stablehlo.token) -> !stablehlo.token",
        "after_all: talks to the world outside",
    ),
    "foreign function": (
        "",
        "stablehlo.custom_call @system(%x) {api_version = 4 : i32, has_side_effect = true} : (tensor<4xf32>) -> ()",
        "stablehlo.custom_call @system: calls code outside the program",
    ),
    "foreign function in a nested region": (
        "tensor<4xf32>",
        "%i = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xi32> %j = stablehlo.slice %i [0:1] : (tensor<4xi32>) -> "
        "tensor<1xi32> %k = stablehlo.reshape %j : (tensor<1xi32>) -> tensor<i32> "
        '%r = "stablehlo.case"(%k) ({ %y = stablehlo.custom_call @cpu_callback(%x) : (tensor<4xf32>) -> tensor<4xf32> '
        "stablehlo.return %y : tensor<4xf32> }, { stablehlo.return %x : tensor<4xf32> }) : (tensor<i32>) -> tensor<4xf32>",
        "@cpu_callback: calls code outside",
    ),
    "collective": (
        "tensor<4xf32>",
        '%r = "stablehlo.all_reduce"(%x) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %c = stablehlo.add %a, %b : tensor<f32> '
        "stablehlo.return %c : tensor<f32> }) {replica_groups = dense<0> : tensor<1x1xi64>} : "
        "(tensor<4xf32>) -> tensor<4xf32>",
        "all_reduce: needs other devices",
    ),
    "partition id": (
        "tensor<ui32>",
        '%r = "stablehlo.partition_id"() : () -> tensor<ui32>',
        "partition_id: needs other devices",
    ),
    "unseeded random numbers": (
        "tensor<4xf32>",
        "%s = stablehlo.constant dense<4> : tensor<1xi64> %a = stablehlo.constant dense<0.0> : tensor<f32> "
        "%r = stablehlo.rng %a, %a, %s, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) "
        "-> tensor<4xf32>",
        "stablehlo.rng: is not an accepted operation",
    ),
    "64 GiB": (
        "tensor<17179869184xf32>",
        "%r = stablehlo.constant dense<0.0> : tensor<17179869184xf32>",
        "68719476736 bytes; at most 4294967296 are accepted",
    ),
    "2^66 bytes": (
        "tensor<4294967296x4294967296xf32>",
        "%r = stablehlo.constant dense<0.0> : tensor<4294967296x4294967296xf32>",
        "73786976294838206464 bytes; at most",
    ),
    "dynamic shape": (
        "tensor<?xf32>",
        "%r = stablehlo.convert %x : (tensor<4xf32>) -> tensor<?xf32>",
        "has a value of the dynamic type tensor<?xf32>",
    ),
    "bounded shape": (
        "tensor<?xf32, #stablehlo.bounds<9>>",
        "%r = stablehlo.abs %x : (tensor<4xf32>) -> tensor<?xf32, #stablehlo.bounds<9>>",
        "has a value of the dynamic type",
    ),
    "tuple": (
        "tuple<tensor<4xf32>>",
        "%r = stablehlo.tuple %x : tuple<tensor<4xf32>>",
        "tuple: is not an accepted operation",
    ),
    "library code by name": (
        "tensor<4xf32>",
        '%r = stablehlo.composite "vendor.kernel" %x {decomposition = @inner} : (tensor<4xf32>) -> tensor<4xf32>',
        "is named 'vendor.kernel'",
    ),
    "compiler instructions": (
        "tensor<4xf32>",
        '%r = stablehlo.add %x, %x {mhlo.frontend_attributes = {_xla_compute_type = "host"}} : tensor<4xf32>',
        "carries the attribute 'mhlo.frontend_attributes'",
    ),
}
INNER = " func.func private @inner(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"


@pytest.mark.parametrize(("result", "line", "reason"), OPERATIONS.values(), ids=OPERATIONS)
def test_an_operation_is_refused_by_name_and_reason(result: str, line: str, reason: str) -> None:
    assert reason in refusal(forge(aside(line, result) + INNER))


def test_a_callback_is_refused() -> None:
    def call_home(x: Any) -> Any:
        return jax.pure_callback(lambda value: np.asarray(value), VECTOR, x)

    lowered = jax.jit(call_home).lower(VECTOR).as_text()
    lowered = re.sub(r"sdy\.mesh .*|, sdy\.sharding = .*>\]>", "", lowered)
    assert "@xla_ffi_python_cpu_callback: calls code outside" in refusal(forge("", module=lowered))


MODULES = {
    "no main": ("func.func public @other() { return }", "has no function main"),
    "another type": (
        "func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }",
        "but the artifact says ['tensor<4xf32>'] -> ['tensor<4xf32>']",
    ),
    "a hidden argument": (
        "func.func public @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> { return %y : tensor<4xf32> }",
        "but the artifact says",
    ),
    "recursion": (
        aside("%r = call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>", "tensor<4xf32>")
        + " func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> { %y = call @f(%x) : (tensor<4xf32>) -> "
        "tensor<4xf32> return %y : tensor<4xf32> }",
        "@f: calls itself",
    ),
    "an instruction on an argument": (
        'func.func public @main(%x: tensor<4xf32> {mhlo.memory_kind = "pinned_host"}) -> tensor<4xf32> '
        "{ return %x : tensor<4xf32> }",
        "carries the attribute 'mhlo.memory_kind'",
    ),
}


@pytest.mark.parametrize(("text", "reason"), MODULES.values(), ids=MODULES)
def test_a_module_is_refused_by_its_shape(text: str, reason: str) -> None:
    assert reason in refusal(forge(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (UNCHANGED + " func.func private @f(tensor<4xf32>) -> tensor<4xf32>", "has no body"),
        (UNCHANGED + " module @second {}", "builtin.module: does not belong at the top"),
        ("", "has no function main"),
    ],
)
def test_what_jax_would_not_even_write_is_refused(text: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with make_ir_context():
        module = ir.Module.parse(f"module @forged {{ {text} }}")
    monkeypatch.setattr(program_rules, "parse_module", lambda *_: module)
    assert reason in refusal(forge(UNCHANGED))


def test_many_partitions_are_refused() -> None:
    text = f"module @forged attributes {{mhlo.num_partitions = 8 : i32}} {{ {UNCHANGED} }}"
    assert "only one-device programs" in refusal(forge("", module=text))


def test_calls_that_double_at_every_level_are_counted_in_full() -> None:
    level = " func.func private @f{0}(%x: tensor<4xf32>) -> tensor<4xf32> {{ %a = call @f{1}(%x) : (tensor<4xf32>) -> " \
        "tensor<4xf32> %b = call @f{1}(%a) : (tensor<4xf32>) -> tensor<4xf32> return %b : tensor<4xf32> }}"  # fmt: skip
    levels = "".join(level.format(n, n + 1) for n in range(60))
    text = (
        aside("%r = call @f0(%x) : (tensor<4xf32>) -> tensor<4xf32>", "tensor<4xf32>")
        + levels
        + INNER.replace("@inner", "@f60")
    )
    assert "grows to" in refusal(forge(text))
    deep = Limits(call_depth=10)
    assert "is called over 10 levels" in refusal(forge(text), deep)


def test_limits_on_operations_arrays_and_bytes() -> None:
    names = ["%x", *(f"%a{n}" for n in range(49)), "%r"]
    chain = " ".join(f"{new} = stablehlo.add {old}, %x : tensor<4xf32>" for old, new in pairwise(names))
    data = forge(aside(chain, "tensor<4xf32>"))
    assert inspect_module(data).operations == 53
    assert "at most 52 operations" in refusal(data, Limits(operations=52))
    assert "names 816 bytes of arrays; limit 815" in refusal(data, Limits(total_bytes=815))
    assert "16 bytes; at most 15 are accepted" in refusal(data, Limits(tensor_bytes=15))
    assert f"{len(data)} bytes; at most 100 are accepted" in refusal(data, Limits(artifact_bytes=100))


ENVELOPES: dict[str, tuple[dict[str, Any], str]] = {
    "devices": ({"nr_devices": 2}, "made for 2 devices"),
    "platform": ({"platforms": ("cuda",)}, "lacks cpu"),
    "checks": ({"disabled_safety_checks": (export.DisabledSafetyCheck.platform(),)}, "disables safety checks"),
    "convention": ({"calling_convention_version": 99}, "calling convention 99 is not known"),
    "an index too many": ({"module_kept_var_idx": (0, 1)}, "do not fit 1 arguments"),
    "an index twice": ({"module_kept_var_idx": (0, 0)}, "do not fit 1 arguments"),
    "a missing argument": ({"module_kept_var_idx": ()}, "but the artifact says [] ->"),
    "nested arguments": ({"in_tree": jax.tree.structure((([0],), {}))}, "arguments are not a flat list"),
    "named arguments": ({"in_tree": jax.tree.structure(((), {"x": 0}))}, "arguments are not a flat list"),
}


@pytest.mark.parametrize(("fields", "reason"), ENVELOPES.values(), ids=ENVELOPES)
def test_the_envelope_is_judged_too(fields: dict[str, Any], reason: str) -> None:
    assert reason in refusal(forge(UNCHANGED, **fields))


@pytest.mark.parametrize("field", ["ordered_effects", "unordered_effects"])
def test_effects_are_refused(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called = jax.make_jaxpr(lambda x: io_callback(lambda _: None, None, x))(1.0)
    effects: Any = {field: tuple(called.effects)}
    read = dataclasses.replace(exported(), **effects)
    monkeypatch.setattr(export, "deserialize", lambda _: read)
    assert "has effects" in refusal(forge(UNCHANGED))


def test_a_second_program_inside_is_refused() -> None:
    assert "carries a second program" in refusal(bytes(exported(jnp.sin).serialize(vjp_order=1)))


def test_symbolic_shapes_are_refused() -> None:
    (size,) = export.symbolic_shape("n")
    shape = jax.ShapeDtypeStruct((size,), jnp.float32)
    assert "argument 0 has the dynamic shape (n,)" in refusal(bytes(exported(jnp.sin, shape).serialize()))


def test_unusual_dtypes_are_refused() -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    assert "argument 0 has dtype key<fry>" in refusal(bytes(exported(jax.random.key_data, key).serialize()))


def test_another_signature_is_refused() -> None:
    array = ArraySpec(name="x", shape=(4,), dtype="float32")
    wanted = Signature(inputs=(array,), outputs=(array,))
    assert inspect_module(forge(UNCHANGED), expected=wanted).signature == wanted
    for other in (dataclasses.replace(array, shape=(5,)), dataclasses.replace(array, dtype="float64")):
        expected = Signature(inputs=(other,), outputs=(array,))
        assert "its signature is (float32[4]) -> (float32[4]), wanted" in refusal(forge(UNCHANGED), expected=expected)
