"""What a profile has to cover, and how much time each part of it may take."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from executor.profiling.timing import Precision
from profiles.models.gemm_shapes import head_shapes, linear_shapes, powers_of_two

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape

QUICK_S, FULL_S = 120.0, 1500.0
SHARES = {
    "memory": 0.03,
    "copy": 0.01,
    "gemm": 0.15,
    "attention": 0.08,
    "engine": 0.30,
    "collective": 0.08,
    "dispatch": 0.15,
    "parallel": 0.12,
    "host_contention": 0.08,
}
"""Parts in the order they run, and their shares of the time. What a part leaves goes to those after it.

The engine comes before what starts processes: those parts end when they end, and all else is corrected by it.
"""
MOST_HEADS = 6
MOST_SIZES = 14


@dataclass(frozen=True)
class Request:
    """One profile.

    Parameters
    ----------
    device
        ``cpu`` or ``cuda``.
    dtype
        Number format of what is measured.
    models
        Shapes whose operators are to be covered.
    configs
        Hugging Face configs of models that the engine is probed with, besides some of ours.
    budget_s
        Seconds for everything together.
    target
        Interpolation error at which a table is good enough.
    threads
        Of each CPU rank.
    groups
        Group sizes of collectives; none on a machine with one device.
    quick
        Fewer sizes and looser intervals.
    parts
        Which parts to measure, of ``SHARES``.
    """

    device: str
    dtype: str
    models: tuple[ModelShape, ...]
    configs: tuple[dict[str, Any], ...] = ()
    budget_s: float = QUICK_S
    target: float = 0.05
    threads: int = 1
    groups: tuple[int, ...] = (2,)
    quick: bool = True
    parts: tuple[str, ...] = tuple(SHARES)
    launchers: tuple[str, ...] = ("local", "ray")
    precision: Precision = field(default_factory=Precision)

    @property
    def has_neighbours(self) -> bool:
        """Whether runs behind a controller can show what CPU ranks of one host cost each other."""
        return self.device == "cpu" and "ray" in self.launchers and (os.cpu_count() or 1) >= 2 * self.threads

    @property
    def is_crowded(self) -> bool:
        """Whether a rank for each of PPO's models is more ranks than cores; three of them score at once."""
        return self.has_neighbours and (os.cpu_count() or 1) < 3 * self.threads

    @property
    def most_case_s(self) -> float:
        """The longest single call that is worth its time."""
        return 0.03 if self.quick else 0.3

    @property
    def most_operand_bytes(self) -> float:
        """The largest operands of a case."""
        return 2.0**28 if self.device == "cpu" else 2.0**33

    def gemm_axes(self) -> tuple[list[int], list[int], list[int]]:
        """Sizes of ``m``, ``n`` and ``k``: powers of two over what the models have, and their own widths.

        A gradient's GEMM has tokens where the forward one has a width, so each axis covers both.
        """
        widths = sorted({w for model in self.models for pair in linear_shapes(model) for w in pair})
        most_tokens = 8192 if self.device == "cpu" else 32768
        own = {w for w in widths if len(self.models) <= 4}
        inner = _thinned(sorted({*powers_of_two(min(*widths, 32), max(*widths, most_tokens)), *own}))
        return _thinned(powers_of_two(1, max(most_tokens, *widths))), inner, inner

    def heads(self) -> list[tuple[int, int, int]]:
        """``(head_dim, heads, kv_heads)`` to measure attention for; those of the smallest and largest models first."""
        found = sorted({h for model in self.models for h in head_shapes(model, (1, 2))})
        if len(found) <= MOST_HEADS:
            return found
        step = (len(found) - 1) / (MOST_HEADS - 1)
        return sorted({found[round(i * step)] for i in range(MOST_HEADS)})


def _thinned(sizes: list[int]) -> list[int]:
    """At most ``MOST_SIZES`` of them, ends included, evenly spread."""
    if len(sizes) <= MOST_SIZES:
        return sizes
    step = (len(sizes) - 1) / (MOST_SIZES - 1)
    return sorted({sizes[round(i * step)] for i in range(MOST_SIZES)})
