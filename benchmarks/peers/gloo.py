"""Two PyTorch processes on this machine that talk through Gloo; shared by the DDP and the all-reduce peers."""

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PROCESSES = 2
DEADLINE = timedelta(seconds=120)
"""For each collective; an overrun ends the process."""


def _member(rank: int, store: str, work: Callable[[int, Any], None], argument: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=PROCESSES, timeout=DEADLINE)
    try:
        work(rank, argument)
    finally:
        dist.destroy_process_group()


def run_pair(work: Callable[[int, Any], None], argument: Any) -> None:
    """Run ``work(rank, argument)`` in two fresh processes of one thread each, until both have ended."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_member, (str(Path(folder) / "store"), work, argument), nprocs=PROCESSES)
