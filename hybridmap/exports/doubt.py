"""Runs of others that do not fit by our count of memory but may by its error: priced as if they ran, and said to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.feasibility import check_plan
from simulator.play.simulate import build_timeline, price_calls
from simulator.pool_memory import pool_memory
from simulator.uncertainty import range_of

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline


def as_it_runs(plan: Plan, facts: Facts) -> tuple[Timeline | None, list[str]]:
    """The timeline of a run, and why it does not fit by our count; none where it does not by the error of that either.

    Nine of ten published peaks lie above ``least_share`` of what is counted for them, so a run that fits with that
    share of its count may run; whoever imports one knows.
    """
    found = [violation.message for violation in check_plan(plan, facts)]
    if found and not may_fit(plan, facts, len(found)):
        return None, found
    return build_timeline(plan, facts, price_calls(plan, facts)), found


def may_fit(plan: Plan, facts: Facts, num_violations: int) -> bool:
    """Whether memory of GPUs alone is in the way, and no more of it is counted than the error of the count."""
    if any(pool.device not in facts.device_types for pool in plan.pools):
        return False
    peaks = [pool_memory(plan, pool, facts) for pool in plan.pools]
    over = [peak for peak in peaks if peak.used_bytes > peak.capacity_bytes]
    share = least_share(facts)
    return len(over) == num_violations and all(share * peak.used_bytes <= peak.capacity_bytes for peak in over)


def least_share(facts: Facts) -> float:
    """Lower end of measured over counted memory, nine times in ten, for models of the job's kind."""
    kind = "moe" if any(role.shape.moe for role in facts.roles.values()) else "dense"
    return range_of(f"memory/{kind}").low
