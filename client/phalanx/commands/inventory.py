"""``phalanx inventory``: what this machine has."""

from phalanx import api
from phalanx.commands import options
from phalanx.console import print_result


def inventory(as_json: options.StatusJson = False) -> None:
    """Show this machine's CPUs, limits, memory and accelerators, and why one was not found."""
    found = api.inventory()
    print_result(found.to_dict(), found.summary(), as_json)
