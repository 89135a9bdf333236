"""Ways through ssh: the commands, the two ends of a relay, and what a failure means and asks for. Knows no run."""
