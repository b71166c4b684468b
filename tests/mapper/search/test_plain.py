"""Protects plain plans: the best one is that of a count of all, it is plain by the words of the definition, and it is
taken for what a job lets it cost."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mapper.candidates.plain import cramped_rows
from mapper.deadline import Deadline
from mapper.model.instance import make_instance
from mapper.pins import Pin
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.result import RunnerUp, preferred
from mapper.search import plain
from mapper.search.best import best_choice
from mapper.search.find_plan import find_plan
from mapper.search.plain import best_plain, rows_worth_keeping
from mapper.search.prune import restricted
from mapper.search_options import SearchOptions
from tests.builders import make_facts, tiny_facts
from tests.mapper.enumeration import end_ticks, every_choice

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

LOOKED_FOR = SearchOptions(prefer_plain=0.0)


def power(n: int) -> bool:
    return n in {2**i for i in range(16)}


def plain_words(facts: Facts, plan: Plan) -> list[str]:
    """What of a plan the definition forbids, its number of stages aside."""
    faults, node = [], facts.group.gpus_per_node
    for entry in plan.roles:
        pool = plan.pool_of(entry.role).num_gpus
        for layout in (entry.training, entry.inference):
            if layout is None:
                continue
            if not all(map(power, (layout.tp, layout.pp, layout.cp, layout.ep))) or layout.tp > node or layout.vpp > 1:
                faults.append(f"{entry.role}: degrees")
            if layout.dp * layout.tp * layout.pp * layout.cp > pool:
                faults.append(f"{entry.role}: GPUs")
        if entry.training is None and entry.inference is not None and entry.inference.pp > 2:
            faults.append(f"{entry.role}: scores in {entry.inference.pp} stages")
        if entry.generation is not None:
            load = -(-facts.workload.num_samples // entry.generation.dp)
            if not power(entry.generation.max_num_seqs) and entry.generation.max_num_seqs < load:
                faults.append("sequences")
    whole = [p.num_gpus % node == 0 or (facts.group.nodes == 1 and power(p.num_gpus)) for p in plan.pools]
    return [*faults, *([] if all(whole) else ["pools"])]


def plain_by_hand(x: Instance, facts: Facts, role: str) -> list[int]:
    """Rows of a role's whole table that are plain, stages aside, from their records one by one."""
    table, node, out = x.tables[role], facts.group.gpus_per_node, []
    for row in range(len(table)):
        training, inference, generation = table.records(row)
        pool, fine = int(table.num_gpus[row]), True
        for layout in (training, inference):
            if layout is not None:
                fine &= all(map(power, (layout.tp, layout.pp, layout.cp, layout.ep))) and layout.tp <= node
                fine &= layout.dp * layout.tp * layout.pp * layout.cp == pool
        if training is None and inference is not None:
            fine &= inference.pp <= 2
        if generation is not None:
            load = -(-facts.workload.num_samples // generation.dp)
            fine &= power(generation.max_num_seqs) or generation.max_num_seqs >= load
            fine &= generation.dp * generation.tp * generation.pp == pool
        fine &= pool % node == 0 or (facts.group.nodes == 1 and power(pool))
        if fine:
            out.append(row)
    return out


def stages_of(x: Instance, role: str, row: int) -> tuple[int, int]:
    training, _, generation = x.tables[role].records(row)
    return (training.pp if training else 1), (generation.pp if generation else 1)


def counted_stages(x: Instance, facts: Facts, role: str, row: int) -> tuple[int, int]:
    """Stages of a row; an engine without room to work in counts as one that needs a pipeline."""
    training, engine = stages_of(x, role, row)
    generation = x.tables[role].records(row)[2]
    if generation is None:
        return training, engine
    shape, work = facts.roles[role].shape, facts.workload
    ranks = generation.tp * generation.pp
    token_bytes = 2 * 2 * shape.num_layers * shape.kv_width / ranks
    cache = token_bytes * (work.engine_prompt_tokens + work.response.maximum) * generation.max_num_seqs
    at_once = generation.max_num_seqs >= min(-(-work.num_samples // generation.dp), facts.generation.max_num_seqs)
    return training, (engine if at_once or cache >= 2 * shape.num_params / ranks else max(engine, 2))


def most_stages(x: Instance, facts: Facts, rows: dict[str, list[int]], roles: tuple[str, ...], pool: int):
    """One stage where the least hungry rows of a pool's roles fit together without a pipeline, in training first."""
    capacity = x.capacity_mib[facts.group.device]
    for most in product([1, 32], repeat=2):
        least = []
        for role in roles:
            there = [
                i
                for i in rows[role]
                if int(x.tables[role].num_gpus[i]) == pool
                and all(a <= b for a, b in zip(counted_stages(x, facts, role, i), most, strict=True))
            ]
            needs = [(int(x.resident_mib[role][i] + x.transient_mib[role][i]), k, i) for k, i in enumerate(there)]
            least.append(min(needs, default=None))
        if None in least:
            continue
        picked = [(role, one[2]) for role, one in zip(roles, least, strict=True) if one is not None]
        need = sum(int(x.resident_mib[r][i]) for r, i in picked) + max(int(x.transient_mib[r][i]) for r, i in picked)
        if need <= capacity:
            return most
    return (32, 32)


@pytest.mark.parametrize(
    "facts",
    [
        tiny_facts("grpo", 4, roles={"actor": "llama-3.2-1b", "reference": "llama-3.2-1b"}, memory_gib=9.0),
        tiny_facts("grpo", 2, memory_gib=4.0),
    ],
    ids=["tight", "two GPUs"],
)
def test_the_best_plain_plan_is_that_of_a_count_of_all(facts):
    problem = make_problem(facts)
    whole = make_instance(problem, prune=False)
    rows = {role: plain_by_hand(whole, facts, role) for role in whole.tables}
    x = restricted(whole, {role: np.asarray(mine, dtype=np.int64) for role, mine in rows.items()})
    allowed = functools.cache(lambda roles, used: most_stages(whole, facts, rows, roles, used))
    ends = []
    for choice in every_choice(x):
        fine = True
        for group, _ in choice.pools:
            for role in group.roles:
                row = rows[role][choice.rows[role]]
                most = allowed(group.roles, int(whole.tables[role].num_gpus[row]))
                fine &= all(a <= b for a, b in zip(stages_of(whole, role, row), most, strict=True))
        if fine:
            ends.append(end_ticks(x, choice))
    found = find_plan(SearchRequest(facts, options=LOOKED_FOR))
    if not ends:
        assert found.plain is None
        return
    assert found.plain is not None
    assert found.plain.iteration_s == pytest.approx(min(ends) * x.tick_s, abs=2 * x.rounding_s)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_it_is_plain_and_no_better_than_the_best(algorithm, nodes):
    facts = make_facts(algorithm, nodes=nodes)
    found = find_plan(SearchRequest(facts, options=LOOKED_FOR, runners_up=False))
    alone = find_plan(SearchRequest(facts, runners_up=False))
    assert found.plain is not None
    assert plain_words(facts, found.plain.plan) == []
    assert found.plain.iteration_s >= alone.iteration_s == pytest.approx(found.iteration_s)
    assert alone.plain is None


def test_pins_that_no_plain_plan_satisfies_leave_none():
    facts = make_facts("ppo", nodes=1)
    pins = (Pin("reference", inference={"pp": 4}),)
    found = find_plan(SearchRequest(facts, options=LOOKED_FOR, pins=pins, top=3, runners_up=False))
    assert found.plain is None
    assert {plan.role("reference").inference.pp for plan in (found.plan, *(r.plan for r in found.alternatives))} == {4}


def test_it_is_taken_for_what_it_may_cost_and_no_more():
    facts = make_facts("ppo", nodes=2)
    found = find_plan(SearchRequest(facts, options=LOOKED_FOR, runners_up=False))
    assert found.plain is not None
    slower = found.plain.iteration_s / found.iteration_s - 1
    assert slower > 0, "the fastest plan of this job is not plain"
    assert preferred(found, facts, slower * 0.9) is found
    taken = preferred(found, facts, slower * 1.1)
    assert taken.plan == found.plain.plan
    assert taken.faster == RunnerUp(found.plan.placement, found.iteration_s, found.plan)
    assert taken.status == "optimal"
    assert found.gap < taken.gap <= taken.tolerance == pytest.approx(slower * 1.1)
    assert preferred(replace(found, plain=None), facts, 1.0).plan == found.plan


def test_engines_without_room_for_their_cache_stay_in_the_tables_as_they_were_priced():
    """They count as if they needed a pipeline, which changes no layout that plans are built from."""
    facts = make_facts("grpo", memory_bytes=48 * 2**30)
    problem = make_problem(facts, options=LOOKED_FOR)
    x = make_instance(problem)
    table = x.tables["actor"]
    before = table.layouts.generation.pp.copy()
    assert np.any(cramped_rows(facts, "actor", table))
    rows_worth_keeping(x, problem)
    assert np.array_equal(table.layouts.generation.pp, before)


def test_when_time_is_up_no_placement_is_solved_and_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five roles on two kinds of GPU have over a thousand placements, each of which took its share after the limit."""
    facts = tiny_facts("ppo", gpus=4)
    problem = make_problem(facts)
    instance = make_instance(problem)
    best, _ = best_choice(instance, 0, 10.0)
    assert best is not None
    looked: list[object] = []
    monkeypatch.setattr(plain, "best_choice", lambda *_, **__: pytest.fail("solved after the deadline"))
    quick = plain.quick_choice
    monkeypatch.setattr(plain, "quick_choice", lambda few: (looked.append(few), quick(few))[1])
    found = best_plain(
        instance, problem, 0, Deadline.after(-plain.GRACE_S), replace(best, rows={r: -1 for r in best.rows})
    )
    assert found is not None
    assert len(looked) < len(instance.partitions)
