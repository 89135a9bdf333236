"""A round over bare pipes to two processes and back, in plain Python: the floor for anything that wakes processes."""

import multiprocessing
import time
from multiprocessing.connection import Connection

import numpy as np

from benchmarks.peers import reduce_arguments


def member(link: Connection, rank: int, values: int) -> None:
    part = np.full(values, rank + 1, np.float32).tobytes()
    while link.recv_bytes():
        link.send_bytes(part)


def main() -> None:
    asked = reduce_arguments.from_arguments()
    context = multiprocessing.get_context("spawn")
    links, processes = [], []
    for rank in range(reduce_arguments.MEMBERS):
        here, there = context.Pipe()
        process = context.Process(target=member, args=(there, rank, asked.values), daemon=True)
        process.start()
        links.append(here)
        processes.append(process)
    total = np.zeros(asked.values, np.float32)

    def rounds(repeats: int) -> None:
        nonlocal total
        for _ in range(repeats):
            sent = total.tobytes()
            for link in links:
                link.send_bytes(sent)
            one, two = (np.frombuffer(link.recv_bytes(), np.float32) for link in links)
            total = one + two

    rounds(asked.warm)
    began = time.perf_counter()
    rounds(asked.repeats)
    seconds = time.perf_counter() - began
    for link, process in zip(links, processes, strict=True):
        link.send_bytes(b"")
        process.join()
    asked.report(seconds, total, "numpy")


if __name__ == "__main__":
    main()
