"""From the options of a command line to an execution."""

from pathlib import Path

from phalanx import executions
from phalanx_proto.errors import InvalidExperiment
from phalanx_proto.execution import Backend, Execution
from phalanx_proto.experiment import DType


def execution(
    *,
    workers: int | None = None,
    cluster: Path | None = None,
    device: Backend | None = None,
    dtype: DType | None = None,
    chunk: int | None = None,
) -> Execution:
    """The execution that the options ask for; without any, this machine's CPU in float64.

    Raises ``InvalidExperiment`` with every contradiction.
    """
    problems = _contradictions(workers, cluster, device, dtype)
    if problems:
        raise InvalidExperiment(problems)
    if cluster is not None:
        return executions.cluster(cluster, chunk=chunk)
    if device is not None and workers is None:
        return executions.device(device, dtype or "float64", chunk=chunk)
    return executions.local(workers or 0, chunk=chunk, dtype=dtype or "float64")


def _contradictions(workers: int | None, cluster: Path | None, device: Backend | None, dtype: DType | None) -> list[str]:
    checks = (
        (
            cluster is not None and workers is not None,
            "--cluster and --workers exclude each other: the cluster file lists the workers",
        ),
        (
            cluster is not None and device is not None,
            "--cluster and --device exclude each other: the cluster file gives each worker its backend",
        ),
        (
            cluster is not None and dtype is not None,
            "--cluster and --dtype exclude each other: the cluster file gives the precision",
        ),
        (
            workers is not None and device not in (None, "cpu"),
            f"--workers counts CPU engines, and --device {device} is one device: give one of them",
        ),
    )
    return [text for wrong, text in checks if wrong]
