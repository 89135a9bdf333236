"""Dense fixture in PyTorch DDP over Gloo: two processes, one thread each, half of every batch each."""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers import dense_fixture, gloo
from benchmarks.peers.dense_fixture import Fixture
from benchmarks.peers.dense_torch import WARM_UPDATES, final_loss, network, reset, train
from benchmarks.peers.line import emit


def shards(fixture: Fixture, rank: int) -> list[tuple[torch.Tensor, float]]:
    """This rank's part of each batch, and the factor that makes DDP's mean of means the mean of the batch."""
    parts = [(ids[rank :: gloo.PROCESSES], len(ids)) for ids in fixture.batches()]
    return [(torch.from_numpy(part.copy()), len(part) * gloo.PROCESSES / rows) for part, rows in parts]


def member(rank: int, fixture: Any) -> None:
    rows = torch.from_numpy(fixture.features), torch.from_numpy(fixture.labels)
    batches = shards(fixture, rank)
    model = DistributedDataParallel(network(fixture), gradient_as_bucket_view=True, static_graph=True)
    train(model, rows, batches[:WARM_UPDATES])
    reset(model, fixture)
    dist.barrier()
    began = time.perf_counter()
    train(model, rows, batches)
    dist.barrier()
    seconds = time.perf_counter() - began
    if rank == 0:
        emit(seconds, check=final_loss(model, fixture), distributions=("torch", "numpy"))


if __name__ == "__main__":
    gloo.run_pair(member, dense_fixture.from_arguments())
