"""Protects plans for ranks that share a host's cores: priced as the simulator does, with a bound that no plan beats."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.execution_mode import ExecutionMode
from mapper.model.choices import fits, ticks_of, with_budget
from mapper.model.instance import make_instance
from mapper.model.variables import Choice
from mapper.objective import Objective
from mapper.pins import Pin
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search.best import best_choice
from mapper.search.find_plan import find_plan
from mapper.search.place import build_plan
from mapper.search.replay import play_plans
from simulator.plan.dataflow import CONTROLLER
from simulator.play.schedule import scheduled
from simulator.play.simulate import simulate
from tests.builders import TINY, make_facts, workload
from tests.draws import draws


def on_cpu(algorithm, ranks=2, cores=2, slowdown=1.2, further_rank_s=0.0):
    """A job whose ranks share the cores of one host."""
    facts = make_facts(algorithm, TINY, gpus_per_node=ranks, work=workload(32, 128, 128, minibatches=2))
    spec = replace(facts.device.spec, kind="cpu", gpus_per_node=cores)
    engine = replace(facts.training, neighbour_slowdown=slowdown, dispatch_rank_s=further_rank_s)
    return replace(facts, device=replace(facts.device, spec=spec), training=engine)


def few_layouts(facts):
    """Pins of one rank a role that leave so few layouts that every choice can be played."""
    pins = []
    for role in facts.roles:
        kinds = {call.kind for call in facts.dataflow.calls_of(role)}
        train = {"dp": 1, "pp": 1, "micro_batch": (4, 16) if role == "critic" else 16, "recompute": "none"}
        engine = {"max_num_seqs": (16, 32)} if role == "actor" else {}
        score = {"micro_batch": 32} | ({} if "train" in kinds else {"dp": 1, "pp": 1})
        pins.append(Pin(role, train if "train" in kinds else {}, score if "forward" in kinds else {}, engine))
    return tuple(pins)


def played_s(x, choice, problem):
    """Seconds of a choice from the seconds of its rows alone, as the simulator plays them."""
    alone_s = {k: t[choice.rows[r]] for r, table in x.tables.items() for k, t in table.durations_s.items()}
    alone_s |= {key: ticks[0] * x.tick_s for key, ticks in x.ticks[CONTROLLER].items()}
    plan = build_plan(x, choice, problem)
    return max(record.end_s for record in scheduled(plan, problem.facts, alone_s))


def all_choices(x):
    for partition in x.partitions:
        for sizes in product(*(x.sizes[group] for group in partition)):
            roles = [role for group in partition for role in group.roles]
            for rows in product(*(range(len(x.tables[role])) for role in roles)):
                choice = Choice(tuple(zip(partition, sizes, strict=True)), dict(zip(roles, rows, strict=True)))
                if fits(x, choice):
                    yield choice


@settings(max_examples=draws(10), deadline=None)
@given(st.sampled_from(["ppo", "remax", "grpo"]), st.integers(1, 3), st.floats(1.0, 2.5), st.sampled_from([0.0, 0.01]))
def test_search_and_simulator_agree_and_no_plan_beats_the_bound(algorithm, cores, slowdown, further_rank_s):
    facts = on_cpu(algorithm, 2, cores, slowdown, further_rank_s)
    request = SearchRequest(facts, pins=few_layouts(facts), runners_up=False)
    found = find_plan(request)  # a difference beyond rounding is a warning, and so an error here
    assert found.iteration_s == simulate(found.plan, facts).iteration_s
    x = make_instance(make_problem(facts, pins=request.pins), prune=False)
    problem = make_problem(facts)
    least = min(played_s(x, choice, problem) for choice in all_choices(x))
    assert found.bound_s <= least + x.tick_s
    assert found.iteration_s <= least * 1.02, "of each placement and pools the best alone is tried"
    assert found.gap == pytest.approx((found.iteration_s - found.bound_s) / found.iteration_s)


def test_neighbours_that_cost_more_than_they_save_are_put_together():
    """Two pools that slow each other down to half lose to one; calls alone say the opposite."""
    jobs = [on_cpu("ppo", 2, slowdown=slowdown) for slowdown in (1.0, 2.4)]
    apart, together = (find_plan(SearchRequest(facts, pins=few_layouts(facts))) for facts in jobs)
    assert len(apart.plan.pools) == 2 and apart.status == "optimal"
    assert len(together.plan.pools) == 1
    assert together.iteration_s < min(r.iteration_s for r in together.runners_up)
    assert together.status == "feasible" and "share this host's cores" in together.open_because[0]


def test_one_pool_has_no_neighbours_and_its_plan_is_proven():
    found = find_plan(SearchRequest(on_cpu("ppo", 4, slowdown=1.5, further_rank_s=0.02), placement="colocate"))
    assert found.status == "optimal" and not found.open_because


@pytest.mark.parametrize(
    "mode", [ExecutionMode(dedicated_rollout=True), ExecutionMode("one-step-off", dedicated_rollout=True)]
)
def test_engines_beside_a_trainer_are_neighbours_too(mode):
    facts = on_cpu("grpo", 4, slowdown=1.3, further_rank_s=0.001)
    found = find_plan(SearchRequest(facts, modes=(mode,), runners_up=False))
    assert found.iteration_s == simulate(found.plan, facts).iteration_s
    assert found.bound_s <= found.iteration_s


@pytest.mark.parametrize("goal", ["throughput_per_gpu", "gpus"])
def test_other_objectives_hold_too(goal):
    facts = on_cpu("ppo", 2, slowdown=1.3, further_rank_s=0.001)
    objective = Objective(goal, (), 1e5 if goal == "gpus" else None)
    found = find_plan(SearchRequest(facts, objective=objective, runners_up=False))
    assert found.value_bound <= found.value
    assert found.plan.num_gpus == 1


def test_a_cutoff_is_kept_or_proven_to_be_out_of_reach():
    facts = on_cpu("ppo", 2, slowdown=1.3)
    x = make_instance(make_problem(facts, pins=few_layouts(facts)))
    choice, solution = best_choice(x, 0, 60.0)
    assert ticks_of(x, choice) == solution.objective_ticks
    none, proven = best_choice(x, 0, 60.0, cutoff=solution.bound_ticks // 2)
    assert none is None and proven.bound_ticks == solution.bound_ticks // 2 + 1
    alone, _ = best_choice(with_budget(x, 1), 0, 60.0)
    assert sum(n for _, n in alone.pools) == 1


def test_plans_played_together_meet_their_neighbours_too():
    facts = on_cpu("ppo", 2, slowdown=1.3, further_rank_s=0.01)
    plans = [find_plan(SearchRequest(facts, placement=p, runners_up=False)).plan for p in ("split", "colocate")]
    assert play_plans(plans, facts) == [simulate(plan, facts).iteration_s for plan in plans]
