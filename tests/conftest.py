"""Shared by all tests: property tests draw the same examples on every run, without a time limit per example."""

from hypothesis import settings

settings.register_profile("hybridmap", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("hybridmap")
