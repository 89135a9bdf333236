import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx_proto.artifacts import ArraySpec, Artifact, Signature
from phalanx_proto.errors import ProgramRefused
from phalanx_proto.programs import FRAMES, export_program, load, program_digest, shapes_of, signature_of

MATRIX = Signature(
    inputs=(ArraySpec(name="x", shape=(3, 2), dtype="float32"), ArraySpec(name="n", shape=(), dtype="int32")),
    outputs=(ArraySpec(name="y", shape=(2,), dtype="float32"), ArraySpec(name="m", shape=(), dtype="int32")),
)


def columns(x: Any, n: Any) -> tuple[Any, Any]:
    return jnp.sum(jnp.tanh(x), axis=0), n + 1


def make_artifact() -> Artifact:
    return export_program("columns", columns, shapes_of(MATRIX))


def test_an_artifact_computes_what_was_exported() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    y, m = jax.jit(load(make_artifact().data).call)(x, np.int32(4))
    np.testing.assert_array_equal(y, jax.jit(columns)(x, 4)[0])
    assert m == 5


def test_the_signature_is_read_back() -> None:
    found = signature_of(load(make_artifact().data))
    assert found == MATRIX
    assert str(MATRIX) == "(x: float32[3,2], n: int32[]) -> (y: float32[2], m: int32[])"
    assert Signature.from_json(MATRIX.to_json()) == MATRIX
    assert [array.module_type for array in MATRIX.inputs] == ["tensor<3x2xf32>", "tensor<i32>"]
    assert [array.nbytes for array in MATRIX.inputs] == [24, 4]


def test_the_digest_does_not_depend_on_process_source_or_function_name() -> None:
    script = """
import jax.numpy as jnp
from phalanx_proto.artifacts import Signature
from phalanx_proto.programs import export_program, shapes_of
import sys

def something_else(first, second):
    # another file, other lines, other names
    return jnp.sum(jnp.tanh(first), axis=0), second + 1

artifact = export_program("columns", something_else, shapes_of(Signature.from_json(sys.argv[1])))
print(artifact.digest)
"""
    here = make_artifact()
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script, MATRIX.to_json()], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == here.digest == program_digest(here.data)


def test_the_bytes_name_no_file_of_this_machine() -> None:
    before = getattr(jax.config, FRAMES)
    assert b"test_programs" not in make_artifact().data
    assert getattr(jax.config, FRAMES) == before


@pytest.mark.parametrize(
    "other",
    [
        lambda x, n: (jnp.sum(jnp.tanh(x), axis=0), n + 2),
        lambda x, n: (jnp.sum(jnp.sin(x), axis=0), n + 1),
        lambda x, n: (jnp.sum(jnp.tanh(x) * jnp.float32(1.0000001), axis=0), n + 1),
    ],
)
def test_another_computation_has_another_digest(other: Any) -> None:
    assert export_program("columns", other, shapes_of(MATRIX)).digest != make_artifact().digest


def test_the_digest_covers_which_arguments_are_used() -> None:
    pair = Signature(inputs=MATRIX.inputs[:1] * 2, outputs=MATRIX.inputs[:1])
    first, second = (export_program("pick", lambda a, b, at=at: (a, b)[at] * 2, shapes_of(pair)) for at in (0, 1))
    assert first.digest != second.digest


def test_platforms_are_the_callers_choice() -> None:
    artifact = export_program("columns", columns, shapes_of(MATRIX), platforms=("cpu",))
    assert load(artifact.data).platforms == ("cpu",)
    with pytest.raises(ProgramRefused, match="lacks cpu; export it for cpu"):
        export_program("columns", columns, shapes_of(MATRIX), platforms=("cuda",))


def test_nested_results_are_refused_at_export() -> None:
    with pytest.raises(ProgramRefused, match=r"'columns': results are not a flat tuple"):
        export_program("columns", lambda x, n: {"y": x, "m": n}, shapes_of(MATRIX))


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"not a program", bytes(range(256)) * 16])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ProgramRefused, match="'gradient': not readable as an exported program"):
        load(data, name="gradient")
