"""What a worker says of itself before any work: the first message, whose first fields never change their meaning."""

from dataclasses import dataclass

PROTOCOL = 1
"""Of messages and their order. Peers of different numbers do not talk."""

PASSED = "passed"
"""The self-test of a machine that computes rightly."""
NOT_RUN = "the self-tests could not be run"
"""How the self-test of a machine begins of which nothing is known: what ran it was ended from outside, or had no time."""


@dataclass(frozen=True, kw_only=True)
class BackendFound:
    """One backend of a worker: its devices, or why it has none."""

    name: str
    devices: tuple[str, ...]
    """The kind of each device; a device's ordinal is its place. The CPU backend has one."""
    reason: str
    """Why it was not found; empty where it was."""


@dataclass(frozen=True, kw_only=True)
class Handshake:
    """One worker's account of itself. It names no host, user or folder."""

    protocol: int
    phalanx: str
    """Version."""
    source: str
    """Fingerprint of the numeric source files."""
    platform: str
    """System and machine: ``Linux x86_64``."""
    python: str
    jax: str
    """Version; empty where it is not installed. So is jaxlib's."""
    jaxlib: str
    cpu_features: str
    """Level and instruction sets in one line; equal lines mean the same instruction sets."""
    slots_asked: int
    slots_found: int
    """The CPU slots of the machine's allocation."""
    backends: tuple[BackendFound, ...]
    self_test: str
    """``PASSED``, or what failed."""
    pid: int
    numeric_class: str
    """Digest of all that can change a bit, but for the program."""

    def backend(self, name: str) -> BackendFound | None:
        """The worker's finding on one backend; None if it never looked for it."""
        return next((found for found in self.backends if found.name == name), None)
