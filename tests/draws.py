"""How much of a costly test runs: in continuous integration a twelfth of the examples that a property draws and every
third point of a sequence, in ``make check-all`` all.

Examples are the same on every run, so that those that are left out there find what they would find once, not each time.
"""

import os

ALL = os.environ.get("DRAWS") == "all"
FEWEST = 4
STRIDE = 1 if ALL else 3
"""From one point of a sequence that is tried to the next."""


def draws(num: int) -> int:
    """Examples of a property that draws ``num`` in all."""
    return num if ALL else min(num, max(num // 12, FEWEST))
