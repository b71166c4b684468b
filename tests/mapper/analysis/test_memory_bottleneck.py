"""Protects what is said to keep a plan from being faster: of all rows that lack memory, the one that lacks least.

Each row of the shortlist is put into the plan and simulated on GPUs with room for it, one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mapper.analysis.memory_bottleneck import WORTHWHILE, MemoryLimit, memory_limit
from mapper.analysis.shortlist import make_shortlist
from mapper.execution_mode import GENERATOR, SYNC, ExecutionMode
from mapper.pins import Pin
from mapper.price_families import with_memory
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from mapper.search_options import OFFLOADS
from simulator.play.simulate import simulate
from simulator.pool_memory import pool_memory
from tests.builders import TINY, make_facts, replace_role, workload

if TYPE_CHECKING:
    from mapper.analysis.shortlist import Shortlist
    from simulator.facts import Facts
    from simulator.plan.plan import Plan, Pool, RolePlan

TRAINING = {"pp": 1, "micro_batch": (1, 4, 16)}
OWN = ExecutionMode("one-step-off", dedicated_rollout=True)


def searched(memory_gib: float, mode: ExecutionMode = SYNC) -> tuple[Facts, Plan, Shortlist]:
    """Two tiny models on two GPUs, few layouts of each, and the best plan."""
    facts = make_facts(
        "grpo",
        roles={"actor": TINY, "reference": TINY},
        gpus_per_node=2,
        memory_bytes=int(memory_gib * 2**30),
        work=workload(64, 256, 256, minibatches=2),
        reserve_bytes=1e9,
    )
    pins = (Pin("actor", TRAINING, generation={"pp": 1, "max_num_seqs": (1, 8, 16, 32, 64)}),)
    if mode.dedicated_rollout:
        pins = (Pin("actor", TRAINING), Pin(GENERATOR, generation={"pp": 1}))
    request = SearchRequest(facts, pins=pins, modes=(mode,), runners_up=False)
    return facts, find_plan(request).plan, make_shortlist(request)


def limit_of(facts: Facts, plan: Plan, pool: Pool, shortlist: Shortlist) -> MemoryLimit:
    return memory_limit(facts, plan, pool, simulate(plan, facts), shortlist)


def entries(plan: Plan, pool: Pool, shortlist: Shortlist, role: str) -> list[RolePlan]:
    """The plan's entry of a role with each row of it that runs on the pool."""
    table, out = shortlist.tables[role], []
    planned = plan.role("actor" if role == GENERATOR else role)
    for row in range(len(table)):
        if table.num_gpus[row] > pool.num_gpus:
            continue
        training, inference, generation = table.records(row)
        update: dict[str, object] = {"generation": generation}
        if role != GENERATOR:
            update = {"training": training, "inference": inference, "offload": OFFLOADS[int(table.offload[row])]}
            update["generation"] = planned.generation if planned.separate_generation else generation
        out.append(planned.model_copy(update=update))
    return out


def lacking(facts: Facts, plan: Plan, pool: Pool, shortlist: Shortlist) -> list[tuple[int, float]]:
    """Bytes that each faster row of the pool's roles lacks, and its iteration on GPUs with room for it."""
    roomy, found = with_memory(facts, lambda num_bytes: 100 * num_bytes), []
    before_s = simulate(plan, facts).iteration_s
    for role in plan.members(pool):
        for entry in entries(plan, pool, shortlist, role):
            other = replace_role(plan, entry.role, **entry.model_dump(include={"offload"}))
            stages = {stage: getattr(entry, stage) for stage in ("training", "inference", "generation")}
            other = replace_role(other, entry.role, **stages)
            peak, seconds = pool_memory(other, other.pool(pool.name), roomy), simulate(other, roomy).iteration_s
            short = peak.used_bytes - facts.memory_capacity_bytes
            if short > 0 and seconds < before_s * (1 - WORTHWHILE):
                found.append((short, seconds))
    return found


@pytest.mark.parametrize(("memory_gib", "mode"), [(3.3, SYNC), (5.0, SYNC), (4.0, OWN)])
def test_the_faster_row_that_lacks_least_of_all(memory_gib: float, mode: ExecutionMode) -> None:
    facts, plan, shortlist = searched(memory_gib, mode)
    named = 0
    for pool in plan.pools:
        rows = lacking(facts, plan, pool, shortlist)
        limit = limit_of(facts, plan, pool, shortlist)
        if not rows:
            assert limit.better is None
            continue
        assert limit.better is not None
        least = min(short for short, _ in rows)
        assert limit.better.short_bytes == pytest.approx(least, abs=16)  # classes of memory round up
        same = [seconds for short, seconds in rows if abs(short - least) <= 16]
        assert limit.better.iteration_s == pytest.approx(min(same, key=lambda s: abs(s - limit.better.iteration_s)))
        named += 1
    assert named, "memory binds in this job"


def test_where_memory_is_plenty_nothing_is_lacking() -> None:
    facts, plan, shortlist = searched(80.0)
    limits = [limit_of(facts, plan, pool, shortlist) for pool in plan.pools]
    assert [limit.better for limit in limits] == [None] * len(plan.pools)


def test_what_fills_a_pool_adds_up() -> None:
    facts, plan, shortlist = searched(5.0)
    for pool in plan.pools:
        limit, peak = limit_of(facts, plan, pool, shortlist), pool_memory(plan, pool, facts)
        assert (limit.pool, limit.capacity_bytes) == (pool.name, 5 * 2**30)
        assert sum(limit.classes.values()) == limit.used_bytes == peak.used_bytes <= limit.capacity_bytes
        assert limit.call == peak.peak_call
        assert limit.classes["reserve"] == 10**9
