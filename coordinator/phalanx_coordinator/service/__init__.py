"""The coordinator service: a Unix socket, gRPC, and the arrays that it keeps for its clients."""
