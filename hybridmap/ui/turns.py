"""One thing at a time for each visitor, so that none keeps the machine from the others by typing fast."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """What one visitor asks for, one after the other; what a newer question overtakes while it waits never starts."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._asked = 0

    async def newest(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """The answer of ``work``; ``None`` if something newer was asked for before it could begin."""
        self._asked += 1
        mine = self._asked
        async with self._lock:
            return await work(*args, **kwargs) if mine == self._asked else None
