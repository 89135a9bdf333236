"""Known answers that a broken jaxlib gets wrong. Run in every new engine; a wrong one refuses the machine.

jaxlib 0.10.2 and 0.11 sum wrongly on CPU, or crash, where XLA hands reductions to YNNPACK. Every value below is an
integer that its dtype holds exactly, so a right answer is exact whatever the order of the additions. A crash is
contained by where this runs: first in the disposable inspector process, then in engines that can be lost.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx_proto.errors import EngineFailed


@dataclass(frozen=True, kw_only=True)
class Check:
    """One known answer and what came instead, in words."""

    name: str
    passed: bool
    wanted: str
    found: str


def run(*, float64: bool = True) -> list[Check]:
    """All checks on the default device; ``float64=False`` leaves out what a device without doubles cannot do."""
    dtypes = ("float32", "float64") if float64 else ("float32",)
    checks = [_keeps_dtype()] if float64 else []
    return checks + [case(dtype) for case in (_broadcast_sum, _square_sum, _rank_seven) for dtype in dtypes]


def require(*, float64: bool = True) -> None:
    """Raise EngineFailed at the first wrong answer."""
    refuse_failures(run(float64=float64))


def refuse_failures(checks: list[Check]) -> None:
    """Raise EngineFailed for the first check that did not pass."""
    failed = next((check for check in checks if not check.passed), None)
    if failed is not None:
        raise EngineFailed(
            f"self-test {failed.name!r} failed: wanted {failed.wanted}, found {failed.found}, with jaxlib "
            f"{version('jaxlib')}; this machine would compute wrong results. Install a jaxlib that phalanx[worker] "
            "allows (not 0.10.2, not 0.11) and start engines through phalanx, which sets their flags"
        )


def _keeps_dtype() -> Check:
    found = str(jnp.asarray(np.ones(1, np.float64)).dtype)
    return Check(name="float64 stays float64", passed=found == "float64", wanted="float64", found=found)


def _check(name: str, function: Callable[..., Any], arguments: tuple[np.ndarray, ...], wanted: np.ndarray) -> Check:
    """Compile ``function`` and compare every element; the words tell of the first that differs."""
    found = np.asarray(jax.jit(function)(*arguments)).reshape(-1)
    expected = wanted.reshape(-1)
    wrong = np.flatnonzero(found != expected)
    at = int(wrong[0]) if wrong.size else expected.size - 1
    return Check(
        name=f"{name} ({arguments[0].dtype})",
        passed=not wrong.size,
        wanted=f"{expected[at]:.0f} at element {at}",
        found=f"{found[at]:.0f}, {wrong.size} of {expected.size} elements wrong",
    )


def _broadcast_sum(dtype: str) -> Check:
    """Issue 126812 of tensorflow: partial sums of a broadcast overwrite each other."""

    def total(column: Any) -> Any:
        return jnp.sum(jnp.broadcast_to(column, (2, 1024, 1024)))

    return _check("sum of a broadcast", total, (np.ones((1024, 1), dtype),), np.array([2 * 1024 * 1024], dtype))


def _square_sum(dtype: str) -> Check:
    """Jax issue 39103: the last row of 2^14 + 1 (float64) or 2^15 + 1 (float32) comes out too small."""
    rows = 16_385 if dtype == "float64" else 32_769
    values = np.zeros((rows, 3), dtype)
    values[:, 0] = np.arange(rows) % 4093 + 1

    def squares(matrix: Any, points: Any) -> Any:
        return jax.vmap(lambda point: jnp.sum((matrix @ point) ** 2))(points)

    return _check("square sum of a matrix-vector product", squares, (np.eye(3, dtype=dtype), values), values[:, 0] ** 2)


def _rank_seven(dtype: str) -> Check:
    """Jax issues 39257 and 40412: a product summed over one axis of seven crashes."""
    shape = (3, 1, 2, 2, 8, 8, 8)
    count = np.arange(np.prod(shape)).reshape(shape)
    left, right = (count % 7).astype(dtype), (count % 5).astype(dtype)
    wanted = np.sum(left * right, axis=3)
    return _check("sum over one axis of seven", lambda a, b: jnp.sum(a * b, axis=3), (left, right), wanted)
