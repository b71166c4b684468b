"""What a script hands back after each iteration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executor.worker.futures import Future


@dataclass(frozen=True)
class Step:
    """The batch of an iteration and the futures of its updates, by role; nothing here has been waited for."""

    batch: Future
    updates: dict[str, Future] = field(default_factory=dict)
