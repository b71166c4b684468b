"""A bar on a terminal while something long runs; nothing where there is no terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType


class TerminalBar:
    """Follows work of size ``total``, with a text beside it; ``counted``: it is made of pieces, not of seconds."""

    def __init__(self, total: float, *, counted: bool, quiet: bool) -> None:
        self._total, self._counted, self._quiet = total, counted, quiet
        self._bar: Any = None

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._bar = _bar(self._counted)
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _drawn(self, done: float, text: str) -> bool:
        """Draw how much is done; whether there is a bar to see it on."""
        if self._bar is not None:
            self._bar.update(self._task, completed=min(done, self._total), description=text)
        return self._bar is not None


def _bar(counted: bool) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    done = MofNCompleteColumn() if counted else TimeElapsedColumn()
    columns = (BarColumn(24), done, TimeRemainingColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=Console(stderr=True))
