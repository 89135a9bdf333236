"""``python -m phalanx`` is the command line."""

from phalanx.cli import main

main()
