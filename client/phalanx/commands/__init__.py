"""The commands of ``phalanx``, one a module; ``phalanx.cli`` puts them together."""
