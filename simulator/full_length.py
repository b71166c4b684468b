"""What a pool holds when every sample is as long as can be, and how rarely a micro-batch needs more than there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.cost.token_quantiles import ALWAYS, TYPICAL
from simulator.pool_memory import pool_memory

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Plan, Pool
    from simulator.plan.timeline import PoolMemory

RAREST = 10_000
"""Lengths are known to one in some thousands: what is rarer than one in so many is said as one in so many."""

HALVINGS = 16


def peak_memory(plan: Plan, pool: Pool, facts: Facts) -> PoolMemory:
    """``pool_memory`` of the typical micro-batches, with what happens at full length.

    Parameters
    ----------
    plan, pool, facts
        The plan, one of its pools, and what is known of job, device and engines.

    Returns
    -------
    PoolMemory
        With ``full_length_bytes`` where that is more, and ``one_in_exceeds`` where it is more than there is.
    """
    typical = pool_memory(plan, pool, facts)
    full = pool_memory(plan, pool, facts, ALWAYS).used_bytes
    if full <= typical.used_bytes:
        return typical
    update: dict[str, int | None] = {"full_length_bytes": full, "one_in_exceeds": None}
    if typical.used_bytes <= typical.capacity_bytes < full:
        update["one_in_exceeds"] = round(1.0 / _share_above(plan, pool, facts, typical.capacity_bytes))
    return typical.model_copy(update=update)


def _share_above(plan: Plan, pool: Pool, facts: Facts, capacity_bytes: int) -> float:
    """Share of the micro-batches that need more, at least one in ``RAREST``."""
    low, high = 1.0 / RAREST, 1.0 - TYPICAL  # shares: what is at ``high`` fits
    if pool_memory(plan, pool, facts, 1.0 - low).used_bytes <= capacity_bytes:
        return low
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        fits = pool_memory(plan, pool, facts, 1.0 - middle).used_bytes <= capacity_bytes
        low, high = (low, middle) if fits else (middle, high)
    return high
