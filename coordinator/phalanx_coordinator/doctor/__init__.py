"""What works on each machine of a group, and the one next step where it does not."""
