"""Protects the objective: for a fixed choice the solver's makespan is what the event queue plays, for every placement
of every algorithm.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from mapper.model.makespan import makespan
from mapper.model.objective import build_iteration_time
from mapper.model.rules import RULES
from mapper.model.variables import make_variables
from simulator.plan.algorithms import ALGORITHMS
from simulator.plan.dataflow import CONTROLLER
from simulator.play.schedule import play
from tests.builders import on_toy, toy_instance
from tests.draws import draws


@settings(max_examples=draws(60))
@given(
    algorithm=st.sampled_from(sorted(ALGORITHMS)),
    optional=st.booleans(),
    seed=st.integers(0, 10_000),
    at=st.integers(0, 10_000),
)
def test_makespan_is_the_end_of_the_event_queue(algorithm: str, optional: bool, seed: int, at: int) -> None:
    roles = ALGORITHMS[algorithm].roles + (ALGORITHMS[algorithm].optional_roles if optional else ())
    x = toy_instance(algorithm, roles, seed, num_gpus=len(roles), sizes=(1,), most_rows=1, capacity_mib=10_000)
    partition = x.partitions[at % len(x.partitions)]
    x = replace(x, partitions=(partition,), sizes=dict.fromkeys(partition, (1,)))
    model = cp_model.CpModel()
    v = make_variables(model, x)
    for rule in RULES:
        rule.build(model, x, v)
    build_iteration_time(model, x, v)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    durations = {key: int(t[0]) for calls in x.ticks.values() for key, t in calls.items()}
    pool_of = {role: str(i) for i, group in enumerate(partition) for role in group.roles} | {CONTROLLER: CONTROLLER}
    played = max(record.end_s for record in play(x.flow, durations, pool_of))
    assert solver.objective_value == solver.best_objective_bound == played == makespan(x, partition, durations)


@pytest.mark.parametrize(("partition", "ticks"), [((("actor", "reference"),), 28), ((("actor",), ("reference",)), 28)])
def test_by_hand(partition: tuple[tuple[str, ...], ...], ticks: int) -> None:
    """transition 1, generation 10, reference 5 beside the CPU reward 3, advantage 2, update 10."""
    x = toy_instance("grpo", ("actor", "reference"), 0)
    durations = {
        "transition": 1,
        "generate_sequences": 10,
        "compute_ref_log_prob": 5,
        "compute_reward": 3,
        "compute_advantage": 2,
        "update_actor": 10,
    }
    assert makespan(x, on_toy(*partition), durations) == ticks
