"""What perturbing the prices says about a plan: draws, contenders and families, with the regret of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mapper.price_families import Family
    from mapper.result import Result
    from simulator.plan.plan import Plan


@dataclass(frozen=True)
class Draw:
    """One set of prices.

    Parameters
    ----------
    factors
        What each family's times are multiplied by.
    best_s
        The shortest iteration known under it, of the search and of all contenders; ``None`` if nothing fits.
    chosen_s
        Iteration of the chosen plan; ``None`` if it does not fit.
    placement
        Of the plan that the search found.
    same_placement, same_layouts
        Whether that plan shares GPUs as the chosen one does; whether pools and layouts are the same too (a KV budget
        may differ).
    """

    factors: Mapping[Family, float]
    best_s: float | None
    chosen_s: float | None
    placement: str
    same_placement: bool
    same_layouts: bool

    @property
    def regret(self) -> float | None:
        """``chosen / best - 1``, a fraction, or ``None`` where the chosen plan does not fit."""
        return None if self.chosen_s is None or self.best_s is None else self.chosen_s / self.best_s - 1.0


@dataclass(frozen=True)
class Contender:
    """A plan that won draws: in how many it won and in how many it does not fit, its mean and worst regret."""

    plan: Plan
    wins: int
    unfit: int
    mean_regret: float
    worst_regret: float


@dataclass(frozen=True)
class FamilyEffect:
    """One family alone at both ends of its interval; ``swing`` is how far the chosen plan's time moves, a fraction."""

    family: Family
    error: float
    faster: Draw
    slower: Draw
    swing: float

    @property
    def regret(self) -> float:
        """Mean regret over the two ends; what is lost, on average, by not knowing this family better."""
        known = [r for r in (self.faster.regret, self.slower.regret) if r is not None]
        return sum(known) / len(known) if known else 0.0


@dataclass(frozen=True)
class Robustness:
    """The answer; ``draws`` may be fewer than ``asked``, and families ``skipped``, where the time budget ended."""

    chosen: Result
    errors: Mapping[Family, float]
    seed: int
    asked: int
    draws: tuple[Draw, ...]
    effects: tuple[FamilyEffect, ...]
    skipped: tuple[Family, ...]
    contenders: tuple[Contender, ...]
    seconds: float

    @property
    def regrets(self) -> list[float]:
        """Regrets of the chosen plan over the draws in which it fits."""
        return [draw.regret for draw in self.draws if draw.regret is not None]

    @property
    def unfit(self) -> int:
        """Draws in which the chosen plan does not fit."""
        return sum(draw.chosen_s is None for draw in self.draws)

    @property
    def safest(self) -> Contender:
        """The contender that fits most often, and of those the one of least worst-case regret."""
        return min(self.contenders, key=lambda c: (c.unfit, c.worst_regret, c.mean_regret))

    @property
    def measure_first(self) -> FamilyEffect | None:
        """The family whose error costs most; among those that cost nothing the one that moves the time most."""
        return max(self.effects, key=lambda e: (e.regret, e.swing), default=None)
