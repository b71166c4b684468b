"""A progress bar over the time that a profile may take; lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from hybridmap.console import say

if TYPE_CHECKING:
    from types import TracebackType


class ProfileBar:
    """Follows a profile; ``show(part, what)`` after each row."""

    def __init__(self, budget_s: float, *, quiet: bool = False) -> None:
        self._budget_s, self._quiet = budget_s, quiet
        self._bar: Any = None
        self._part = ""
        self._rows = 0

    def __enter__(self) -> Self:
        self._start_s = time.monotonic()
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (BarColumn(24), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._budget_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, part: str, what: str) -> None:
        """Take in one row."""
        self._rows += 1
        spent_s = time.monotonic() - self._start_s
        if self._bar is not None:
            text = f"{self._rows:,} rows  {part}: {what}"
            self._bar.update(self._task, completed=min(spent_s, self._budget_s), description=text)
        elif not self._quiet and part != self._part:
            say(f"{spent_s:6.0f} s  {part} ...")
        self._part = part
