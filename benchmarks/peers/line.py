"""The one line of JSON that every peer prints, and what it says."""

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version


def emit(seconds: float, *, units: int = 1, check: float, distributions: tuple[str, ...] = (), **extra: float) -> None:
    """Print the result of one run.

    ``seconds`` is the warm work alone, ``units`` what it is shared out over (samples, updates, exchanges), ``check`` a
    value that only the right computation gives, ``distributions`` whose versions to name, ``extra`` further figures.
    """
    versions = {"python": platform.python_version()} | {name: _version(name) for name in distributions}
    print(
        json.dumps({"seconds": seconds, "units": units, "check": check, "versions": versions, "extra": extra}),
        flush=True,
    )


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return str(getattr(sys.modules.get(distribution), "__version__", "unknown"))
