"""What a search is doing, told to whoever listens: searches are asked for from many places, and few show anything.

Told at the start of each part and at each step of pricing, so a listener that draws should do so only now and then.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Progress:
    """One moment of a search.

    Parameters
    ----------
    doing
        What it does, in words.
    done, total
        Steps of that; both 0 where nobody knows how many there will be.
    best_s
        Seconds of the fastest iteration so far; ``None`` before there is one.
    """

    doing: str
    done: int = 0
    total: int = 0
    best_s: float | None = None


_listener: ContextVar[Callable[[Progress], None] | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Callable[[Progress], None]) -> Iterator[None]:
    """Hear of every search in this context."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(doing: str, done: int = 0, total: int = 0, best_s: float | None = None) -> None:
    """Say what the search does now; nothing where nobody listens."""
    if (listener := _listener.get()) is not None:
        listener(Progress(doing, done, total, best_s))
