"""Property tests try the same examples in every run, and none is judged by the clock."""

from hypothesis import settings

settings.register_profile("phalanx", derandomize=True, deadline=None, database=None)
settings.load_profile("phalanx")
