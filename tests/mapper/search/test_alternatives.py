"""Protects other plans beside the best: each differs in something that matters, and is the best that does."""

from __future__ import annotations

from mapper.model.instance import make_instance
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from simulator.feasibility import check_plan
from simulator.play.simulate import simulate
from tests.builders import make_facts, tiny_facts
from tests.mapper.enumeration import end_ticks, every_choice


def test_every_other_placement_and_pool_size_has_its_best_plan():
    facts = tiny_facts("grpo", 4)
    found = find_plan(SearchRequest(facts, top=50))
    x = make_instance(make_problem(facts), prune=False)
    least: dict[object, int] = {}
    for choice in every_choice(x):
        key = frozenset((frozenset(group.roles), n) for group, n in choice.pools)
        least[key] = min(least.get(key, 2**62), end_ticks(x, choice))
    for other in (r.plan for r in found.alternatives):
        key = frozenset((frozenset(pool.roles), pool.num_gpus) for pool in other.pools)
        assert simulate(other, facts).iteration_s >= least[key] * x.tick_s - x.rounding_s
    sets = {frozenset(roles for roles, _ in key) for key in least}
    shown = [
        frozenset(frozenset(p.roles) for p in plan.pools)
        for plan in (found.plan, *(r.plan for r in found.alternatives))
    ]
    assert set(shown) == sets
    for one in sets:
        best = min(ticks for key, ticks in least.items() if frozenset(roles for roles, _ in key) == one)
        plans = [r.plan for r in found.alternatives] + [found.plan]
        times = [
            simulate(p, facts).iteration_s for p in plans if frozenset(frozenset(pool.roles) for pool in p.pools) == one
        ]
        assert abs(min(times) - best * x.tick_s) <= 2 * x.rounding_s


def test_each_differs_in_degrees_or_pools_and_can_run():
    facts = make_facts("ppo", nodes=1)
    found = find_plan(SearchRequest(facts, top=6, runners_up=False))
    assert len(found.alternatives) == 5
    seen = set()
    for plan in (found.plan, *(r.plan for r in found.alternatives)):
        assert check_plan(plan, facts) == []
        trained = [(e.role, *(getattr(e.training, d) for d in ("tp", "pp", "ep"))) for e in plan.roles if e.training]
        engines = [(e.generation.tp, e.generation.pp) for e in plan.roles if e.generation]
        seen.add((tuple((p.roles, p.num_gpus) for p in plan.pools), tuple(trained), tuple(engines)))
    assert len(seen) == 6
    times = [r.iteration_s for r in found.alternatives]
    assert times == sorted(times)
    assert times[0] >= found.iteration_s - 1e-9
    assert find_plan(SearchRequest(facts, runners_up=False)).alternatives == ()
