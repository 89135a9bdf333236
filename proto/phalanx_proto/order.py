"""The order of rows in an epoch: a pure function of (seed, epoch, rows), the same everywhere (DESIGN §3.1)."""

import numpy as np
from numpy.typing import NDArray

from phalanx_proto.errors import InvalidRequest
from phalanx_proto.philox import STREAM_ORDER, words


def row_order(seed: int, epoch: int, rows: int) -> NDArray[np.int32]:
    """int32[rows]: the permutation that sorts the epoch's 64-bit Philox keys; equal keys keep their row order.

    Key of row i: words 2i (low) and 2i + 1 (high) of stream 1, lane ``epoch``.
    """
    if not 0 <= rows < 1 << 31:
        raise InvalidRequest(f"{rows} rows cannot be ordered: row ids are int32, so at most 2**31 - 1")
    pairs = words(seed, STREAM_ORDER, 2 * rows, lane=epoch).reshape(-1, 2).astype(np.uint64)
    keys = pairs[:, 0] | (pairs[:, 1] << np.uint64(32))
    order = np.argsort(keys)
    ranked = keys[order]
    if np.any(ranked[1:] == ranked[:-1]):  # only ties can make the fast sort differ from the stable one
        order = np.argsort(keys, kind="stable")
    return order.astype(np.int32)
