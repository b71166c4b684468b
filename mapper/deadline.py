"""Until when a search may go on: one record that every part of it asks, listing and pricing included."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from profiles.errors import InputError


@dataclass(frozen=True)
class Deadline:
    """A moment of ``time.perf_counter``, in seconds; without one there is no limit."""

    ends_s: float = math.inf

    @staticmethod
    def after(seconds: float) -> Deadline:
        """So many seconds from now."""
        return Deadline(time.perf_counter() + seconds)

    @property
    def left_s(self) -> float:
        """Seconds that are left; negative when time is up."""
        return self.ends_s - time.perf_counter() if math.isfinite(self.ends_s) else math.inf

    def is_over(self) -> bool:
        """Whether time is up: another answer at another moment."""
        return self.left_s <= 0.0

    def later(self, seconds: float) -> Deadline:
        """So many seconds after this one."""
        return Deadline(self.ends_s + seconds)

    def share(self, part: float) -> Deadline:
        """The moment at which this part of what is left has passed."""
        if not math.isfinite(self.ends_s):
            return self
        now_s = time.perf_counter()
        return Deadline(now_s + part * (self.ends_s - now_s))


NEVER = Deadline()


class TimeUpError(InputError):
    """Time was up before a plan was found or ruled out."""

    def __init__(self, limit_s: float | None = None) -> None:
        after = "" if limit_s is None else f" of {limit_s:g} s"
        super().__init__(
            f"the time limit{after} was up before a plan was found or ruled out; give a longer time limit "
            "(--time-limit), or leave less to search: pin degrees or pool sizes of a role, or name a placement"
        )
