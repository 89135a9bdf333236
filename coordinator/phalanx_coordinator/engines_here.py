"""Whether this installation can compute at all; a thin client has no JAX, and says so before anything starts."""

from importlib.util import find_spec

from phalanx_proto.errors import Unavailable


def require_engines() -> None:
    """Raises ``Unavailable`` where JAX is not installed: every run needs the canonical CPU engine on this side."""
    if find_spec("jax") is None:
        raise Unavailable(
            "this installation has no JAX, so it can only ask others: pip install 'phalanx[worker]' here (from a checkout: "
            "pip install '.[worker]'), or phalanx.connect() to a machine that has it"
        )
