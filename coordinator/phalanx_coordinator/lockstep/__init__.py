"""The updates of a group: decisions in machine (pure), requests and nodes at the edge (group_run)."""
