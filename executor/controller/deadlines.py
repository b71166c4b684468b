"""How long a call may take before its ranks count as hung, learned from how long it took so far."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.records import CallRecord


@dataclass(frozen=True)
class CallLimits:
    """A call is late after ``least_s`` and ``factor`` times its slowest so far, or ``first_s`` if it never ended yet.

    The first call of its kind loads weights, compiles, fills caches: it says nothing of what it takes otherwise.
    """

    least_s: float = 60.0
    factor: float = 10.0
    first_s: float = 3_600.0


class Deadlines:
    """Follows the oldest call that is not through. Only that one surely runs: later ones may wait for it."""

    def __init__(self, limits: CallLimits | None = None) -> None:
        self._limits = limits or CallLimits()
        self._slowest_s: dict[str, float] = {}
        self._answered: dict[tuple[int, str], float] = {}
        self._oldest, self._since_s = -1, 0.0

    def note(self, number: int, call: str, records: Sequence[CallRecord]) -> None:
        """Remember how long ranks took for a call (``role.method``). It counts once all of them are through."""
        longest_s = max((record.end_s - record.start_s for record in records), default=0.0)
        self._answered[number, call] = max(self._answered.get((number, call), 0.0), longest_s)

    def limit_s(self, call: str) -> float:
        """Seconds that a call may take."""
        slowest_s = self._slowest_s.get(call)
        return self._limits.first_s if slowest_s is None else max(self._limits.least_s, self._limits.factor * slowest_s)

    def left_s(self, number: int, call: str) -> float:
        """Seconds left to the oldest call, the ``number``-th; its time runs since this was first asked."""
        now_s = time.monotonic()
        if number != self._oldest:
            self._oldest, self._since_s = number, now_s
            for through in [key for key in self._answered if key[0] < number]:
                took_s = self._answered.pop(through)
                self._slowest_s[through[1]] = max(self._slowest_s.get(through[1], 0.0), took_s)
        return self._since_s + self.limit_s(call) - now_s
