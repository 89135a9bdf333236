"""All-reduce between two PyTorch processes over Gloo."""

import time
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.peers import gloo, reduce_arguments


def member(rank: int, asked: Any) -> None:
    source = torch.full((asked.values,), float(rank + 1))
    total = source.clone()

    def rounds(repeats: int) -> None:
        for _ in range(repeats):
            total.copy_(source)
            dist.all_reduce(total)

    rounds(asked.warm)
    dist.barrier()
    began = time.perf_counter()
    rounds(asked.repeats)
    seconds = time.perf_counter() - began
    if rank == 0:
        asked.report(seconds, total.numpy(), "torch")


if __name__ == "__main__":
    gloo.run_pair(member, reduce_arguments.from_arguments())
