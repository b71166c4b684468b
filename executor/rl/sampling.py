"""How responses are drawn: what a call asks of whichever engine generates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn. ``greedy`` takes the likeliest token; ``end_token`` ends a response early."""

    max_tokens: int
    temperature: float = 1.0
    greedy: bool = False
    end_token: int | None = None
    seed: int = 0
