"""Shared by all tests: property tests draw the same examples on every run, without a time limit per example.

A property that does not say how many it draws has an eighth of hypothesis's hundred, and all in ``make check-all``.
"""

import os

from hypothesis import settings

from tests.draws import ALL

# A Ray that a test starts, another system's too, neither asks for a token nor leaves one in the home folder.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

settings.register_profile(
    "hybridmap", max_examples=100 if ALL else 12, deadline=None, derandomize=True, print_blob=False
)
settings.load_profile("hybridmap")
