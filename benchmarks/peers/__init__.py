"""One file a peer. Each is run as ``python -m benchmarks.peers.NAME`` and prints one JSON line (see ``line.py``)."""
