"""Phalanx of the same version on a machine that ssh reaches: installed, proved, and written into the cluster file."""
