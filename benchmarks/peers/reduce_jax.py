"""All-reduce between two JAX processes over its Gloo collectives: a jitted sum over a two-process mesh."""

import os
import socket
import subprocess
import sys
import time

from benchmarks.peers import reduce_arguments

RANK, ADDRESS = "REDUCE_JAX_RANK", "REDUCE_JAX_ADDRESS"
DEADLINE_SECONDS = 150


def member(rank: int, address: str) -> None:
    os.environ |= {"NPROC": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_experimental_ynn_fusion_type="}
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, reduce_arguments.MEMBERS, rank)
    asked = reduce_arguments.from_arguments()
    mesh = Mesh(np.array(jax.devices()), ("member",))
    part = np.full((1, asked.values), rank + 1, np.float32)
    values = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("member")), part)
    add = jax.jit(lambda v: v.sum(axis=0), out_shardings=NamedSharding(mesh, PartitionSpec()))
    for _ in range(asked.warm):
        total = add(values).block_until_ready()
    began = time.perf_counter()
    for _ in range(asked.repeats):
        total = add(values).block_until_ready()
    seconds = time.perf_counter() - began
    found = np.asarray(total.addressable_data(0))
    if rank == 0:
        asked.report(seconds, found, "jax", "jaxlib")
    jax.distributed.shutdown()


def main() -> None:
    if RANK in os.environ:
        member(int(os.environ[RANK]), os.environ[ADDRESS])
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "benchmarks.peers.reduce_jax", *sys.argv[1:]]
    members = [
        subprocess.Popen(command, env=os.environ | {RANK: str(rank), ADDRESS: address})
        for rank in range(reduce_arguments.MEMBERS)
    ]
    try:
        codes = [process.wait(DEADLINE_SECONDS) for process in members]
    finally:
        for process in members:
            process.kill()
            process.wait()
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main()
