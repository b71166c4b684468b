"""A progress bar over the time that a profile may take; lines where there is no terminal."""

from __future__ import annotations

import time

from hybridmap.console import say
from hybridmap.text.bar import TerminalBar


class ProfileBar(TerminalBar):
    """Follows a profile; ``show(part, what)`` after each row."""

    def __init__(self, budget_s: float, *, quiet: bool = False) -> None:
        super().__init__(budget_s, counted=False, quiet=quiet)
        self._start_s = time.monotonic()
        self._part = ""
        self._rows = 0

    def show(self, part: str, what: str) -> None:
        """Take in one row."""
        self._rows += 1
        spent_s = time.monotonic() - self._start_s
        if not self._drawn(spent_s, f"{self._rows:,} rows  {part}: {what}") and not self._quiet and part != self._part:
            say(f"{spent_s:6.0f} s  {part} ...")
        self._part = part
