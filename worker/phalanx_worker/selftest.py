"""Stub until the real one arrives."""
def require() -> None:
    """Stub."""
