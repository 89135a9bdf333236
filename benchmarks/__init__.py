"""Phalanx beside its peers: one file a question, one file a peer, every run in a fresh process."""
