"""Phalanx: fits and simulations in lockstep on the machines a researcher already reaches over SSH."""
