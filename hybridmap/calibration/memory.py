"""What a log's peak of memory says of the trainer's passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.calibration import MOST_MEMORY, MemoryPeak
from simulator.cost.memory import total
from simulator.cost.role_memory import ENGINE_RESERVE
from simulator.cost.token_quantiles import RARE
from simulator.pool_memory import memories_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridmap.runlogs.records import LoggedStep
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

GIB = 2**30


def learn_memory(steps: Sequence[LoggedStep], plan: Plan, facts: Facts) -> MemoryPeak | None:
    """The peak that trainers allocated beside the priced one; ``None`` where the log has none.

    The engine is left out of both: its cache is as large as it is let be. What lies there for good is taken as priced,
    and what passes need is as many times as large as the rest asks for; less than priced never counts, since a log
    knows one layout's peak alone.
    """
    allocated = max((step.allocated_gib for step in steps if step.allocated_gib is not None), default=None)
    if allocated is None:
        return None
    trains = {call.key for call in facts.dataflow.calls if call.kind in ("train", "forward")}
    best_gib, best_passes_gib = 0.0, 0.0
    for pool in plan.pools:
        needs = memories_on(plan, pool, facts, RARE)
        kept = [{k: v for k, v in own.resident.items() if k != ENGINE_RESERVE} for own in needs.values()]
        resident_gib = sum(float(total(own)[0]) for own in kept if own) / GIB
        for own in needs.values():
            for key, classes in own.transient.items():
                passes_gib = float(total(classes)[0]) / GIB
                if key in trains and resident_gib + passes_gib > best_gib:
                    best_gib, best_passes_gib = resident_gib + passes_gib, passes_gib
    if best_passes_gib <= 0:
        return None
    factor = 1.0 + (allocated - best_gib) / best_passes_gib
    return MemoryPeak(allocated_gib=allocated, priced_gib=best_gib, factor=min(max(factor, 1.0), MOST_MEMORY))
