"""From what is wrong with a machine to the one next step. Pure. Steps hold commands with hosts and paths: they are private."""

from collections.abc import Callable, Sequence
from pathlib import Path

from phalanx_coordinator.members.findings import Finding
from phalanx_coordinator.ssh.attempt import NOTICED
from phalanx_coordinator.ssh.command import enroll_command, enroll_step
from phalanx_proto.handshake import NOT_RUN

_TO_INSTALL = frozenset(("no_executable", "not_executable", "old_python", "not_phalanx", "incomplete"))
"""Failures that enroll mends."""


def next_step(finding: Finding, file: Path | None) -> str:
    """What the person can do next about a machine that cannot join; empty where there is nothing to say."""
    if finding.failure_kind in _TO_INSTALL and finding.record.transport == "ssh":
        return enroll_step(finding.record, file)
    told = "" if finding.failure is None else finding.failure.private.partition(NOTICED)[0].strip()
    if told:
        return told
    fields = {row["field"] for row in finding.refusals}
    steps = (step for field, step in _STEPS if field in fields)
    return next(steps, lambda finding, file: "")(finding, file)


def next_steps(findings: Sequence[Finding]) -> str:
    """What the person can do next about each machine that a run has refused; empty where there is nothing to say."""
    steps = {finding.record.name: next_step(finding, finding.record.file) for finding in findings}
    return "\n".join(f"next for {name}: {step}" for name, step in steps.items() if step)


def _other_version(finding: Finding, file: Path | None) -> str:
    if finding.record.transport != "ssh":
        return "this machine has several installations in one another's way; make one environment anew and run from it"
    return f"install this version there:\n    {enroll_command(finding.record, file)}"


def _no_backend(finding: Finding, file: Path | None) -> str:
    record = finding.record
    if record.backend == "mps" and finding.handshake is not None and finding.handshake.platform != "Darwin arm64":
        return f'that machine is no Mac with Apple silicon: write backend = "cpu" for {record.name}'
    if record.backend != "cuda":
        return 'install a plugin of JAX for Metal (jax-mps) into the same Python, or write backend = "cpu"'
    plugin = "if it has an NVIDIA driver (nvidia-smi says so), install JAX's plugin for it into the same Python"
    how = f"\n    {enroll_command(record, file)}\n" if record.transport == "ssh" else " pip install 'jax[cuda12]'; "
    return f'{plugin}:{how}else write backend = "cpu"'


def _slots(finding: Finding, file: Path | None) -> str:
    found = finding.handshake.slots_found if finding.handshake is not None else 1
    return f"write slots = {found} for {finding.record.name}, or oversubscribe = true at the top of the file"


def _device(finding: Finding, file: Path | None) -> str:
    return f"write the number of a device that is there: device = 0 for {finding.record.name}, or take the record out"


def _wrong_sums(finding: Finding, file: Path | None) -> str:
    if finding.handshake is not None and finding.handshake.self_test.startswith(NOT_RUN):
        return "nothing is known of its sums: something ended the process that tests them, or it was too slow; ask again"
    return (
        "that machine computes known answers wrong, so its results cannot be trusted: install the same versions anew, and if "
        "it still fails, take the record out"
    )


def _no_float64(finding: Finding, file: Path | None) -> str:
    return 'write precision = "float32" at the top of the file, or take the record out'


_STEPS: Sequence[tuple[str, Callable[[Finding, Path | None], str]]] = (
    *((field, _other_version) for field in ("protocol", "source", "jax", "jaxlib")),
    ("backend", _no_backend),
    ("dtype", _no_float64),
    ("slots", _slots),
    ("device", _device),
    ("self-test", _wrong_sums),
)
"""By the field of a refusal; the first that applies is the one to do."""
