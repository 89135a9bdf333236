"""Between the messages of ``v1`` and the values behind them; protobuf stops here."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx_proto import bulk, tensors
from phalanx_proto.errors import CorruptData
from phalanx_proto.handshake import BackendFound, Handshake
from phalanx_proto.receipt import Receipt
from phalanx_proto.v1 import tensor_pb2, worker_service_pb2

Node = tuple[int, int]


def header(array: NDArray[Any]) -> tensor_pb2.TensorHeader:
    """Dtype and shape of an array."""
    return tensor_pb2.TensorHeader(dtype=array.dtype.name, shape=array.shape)


def handshake_response(found: Handshake) -> worker_service_pb2.HandshakeResponse:
    """The message of a handshake."""
    answer = worker_service_pb2.HandshakeResponse(
        protocol=found.protocol, source=found.source, phalanx=found.phalanx, platform=found.platform,
        python=found.python, jax=found.jax, jaxlib=found.jaxlib, cpu_features=found.cpu_features,
        slots_asked=found.slots_asked, slots_found=found.slots_found, self_test=found.self_test, pid=found.pid,
        numeric_class=found.numeric_class,
    )  # fmt: skip
    for backend in found.backends:
        answer.backends.add(name=backend.name, devices=backend.devices, reason=backend.reason)
    return answer


def handshake(answer: worker_service_pb2.HandshakeResponse) -> Handshake:
    """The value of a handshake message."""
    return Handshake(
        protocol=answer.protocol, source=answer.source, phalanx=answer.phalanx, platform=answer.platform,
        python=answer.python, jax=answer.jax, jaxlib=answer.jaxlib, cpu_features=answer.cpu_features,
        slots_asked=answer.slots_asked, slots_found=answer.slots_found, self_test=answer.self_test, pid=answer.pid,
        numeric_class=answer.numeric_class,
        backends=tuple(
            BackendFound(name=b.name, devices=tuple(b.devices), reason=b.reason) for b in answer.backends
        ),
    )  # fmt: skip


def receipt_message(found: Receipt) -> worker_service_pb2.Receipt:
    """The message of a receipt; what was not measured stays absent."""
    return worker_service_pb2.Receipt(
        rows=found.rows, prepare_ns=found.prepare_ns, compute_ns=found.compute_ns, readback_ns=found.readback_ns,
        total_ns=found.total_ns, resident=found.resident,
    )  # fmt: skip


def receipt(message: worker_service_pb2.Receipt) -> Receipt:
    """The value of a receipt message."""
    names = ("prepare_ns", "compute_ns", "readback_ns", "total_ns", "resident")
    measured = {name: getattr(message, name) for name in names if message.HasField(name)}  # type: ignore[arg-type]
    return Receipt(rows=message.rows, **measured)


def node_messages(
    update: int, nodes: Mapping[Node, NDArray[np.float64]], cost: Receipt
) -> Iterator[tuple[worker_service_pb2.TrainResponse, list[memoryview]]]:
    """The nodes of one update in as few messages as the chunk size allows; the receipt comes with the last."""
    response, payload, filled = worker_service_pb2.TrainResponse(update=update), list[memoryview](), 0
    for (lo, hi), values in sorted(nodes.items()):
        for offset, piece in tensors.offsets(values):
            if filled + piece.nbytes > tensors.CHUNK and filled:
                yield response, payload
                response, payload, filled = worker_service_pb2.TrainResponse(update=update), [], 0
            bulk.fill(response.parts.add(lo=lo, hi=hi).chunk, offset, piece)
            payload.append(piece)
            filled += piece.nbytes
    response.receipt.CopyFrom(receipt_message(cost))
    yield response, payload


class NodeReader:
    """Puts the nodes of one update together from the parts of its messages, into the buffers given."""

    def __init__(self, expected: Iterable[Node], buffers: Mapping[Node, NDArray[np.float64]]) -> None:
        self._waiting = list(expected)
        self.nbytes = sum(buffers[node].nbytes for node in self._waiting)
        """Of all the values that are expected."""
        self._assemblers = {
            node: tensors.Assembler(buffers[node].nbytes, out=buffers[node].view(np.uint8).data) for node in self._waiting
        }

    def add(self, part: worker_service_pb2.NodePart, data: memoryview) -> None:
        """Take the next part and its bytes; CorruptData if it is not of a node that was asked for, or out of order."""
        node = (part.lo, part.hi)
        if not self._waiting or node != self._waiting[0]:
            raise CorruptData(f"values of blocks [{part.lo}, {part.hi}) came, which are not the next ones asked for")
        assembler = self._assemblers[node]
        assembler.add(part.chunk.offset, data, part.chunk.checksum)
        if assembler.complete:
            self._waiting.pop(0)

    def finish(self) -> None:
        """CorruptData if something has not come."""
        if self._waiting:
            listed = ", ".join(f"[{lo}, {hi})" for lo, hi in self._waiting)
            raise CorruptData(f"the values of blocks {listed} did not come")
