"""What a worker lets in: a gradient program passes a disposable inspector before anything of it is compiled here."""

import asyncio

from phalanx_proto.artifacts import ArraySpec, Artifact, Signature
from phalanx_proto.experiment import Sizes
from phalanx_worker.inspection import Inspector
from phalanx_worker.state import ArrayType

DEADLINE = 60.0
"""Seconds for one program."""


def gradient_signature(sizes: Sizes, x: ArrayType, y: ArrayType) -> Signature:
    """Arrays in and out of a gradient program for data of these types."""

    def array(name: str, shape: tuple[int, ...], dtype: str = sizes.dtype) -> ArraySpec:
        return ArraySpec(name=name, shape=shape, dtype=dtype)

    rows = sizes.block
    return Signature(
        inputs=(
            array("parameters", (sizes.parameters,)),
            array("x", (rows, *x.shape[1:])),
            array("y", (rows, *y.shape[1:]), y.dtype),
            array("weight", (rows,)),
            array("key", (4,), "uint32"),
        ),
        outputs=(
            array("gradient", (sizes.parameters,)),
            array("loss", ()),
            array("weight", ()),
            array("metrics", (sizes.metrics,)),
        ),
    )


class Admission:
    """Admits programs through the worker's inspector."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector

    async def admit(self, data: bytes, sizes: Sizes, x: ArrayType, y: ArrayType) -> None:
        """Raises ProgramRefused, saying what is wrong with the program."""
        artifact = Artifact(name="gradient", data=data, digest="")
        signature = gradient_signature(sizes, x, y)
        await asyncio.to_thread(self._inspector.inspect, [artifact], [signature], DEADLINE)
