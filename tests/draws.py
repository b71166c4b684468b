"""How many examples a costly property draws: a twelfth of them in continuous integration, all in ``make check-all``.

Examples are the same on every run, so that those that are left out there find what they would find once, not each time.
"""

import os

ALL = os.environ.get("DRAWS") == "all"
FEWEST = 4


def draws(num: int) -> int:
    """Examples of a property that draws ``num`` in all."""
    return num if ALL else min(num, max(num // 12, FEWEST))
