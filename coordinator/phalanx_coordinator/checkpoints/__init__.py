"""Runs on disk at update boundaries: what is kept, how it is written, and which one counts."""
