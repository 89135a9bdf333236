"""The coordinator: checks an experiment, admits a group, and drives it in lockstep."""
