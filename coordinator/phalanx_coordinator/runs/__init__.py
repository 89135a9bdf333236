"""A fit and a simulation from their requests to their outcomes, on the pool and on the group."""
