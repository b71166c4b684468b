"""How responses are drawn: what a call asks of whichever engine generates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn. ``greedy`` takes the likeliest token; each of ``end_tokens`` ends a response early.

    Tokens are drawn among the ``top_k`` likeliest (0: all), and among the fewest likeliest that hold ``top_p`` of what
    is left. Log-probs are those of the distribution that is drawn from. ``reproducible``: whether a sample's tokens
    depend on the seed and its number alone, whatever is drawn beside it; ``None`` leaves it to the engine.
    """

    max_tokens: int
    temperature: float = 1.0
    greedy: bool = False
    end_tokens: tuple[int, ...] = ()
    seed: int = 0
    top_p: float = 1.0
    top_k: int = 0
    reproducible: bool | None = None

    @property
    def cuts(self) -> bool:
        """Whether some tokens cannot be drawn."""
        return not self.greedy and (self.top_p < 1.0 or self.top_k > 0)
