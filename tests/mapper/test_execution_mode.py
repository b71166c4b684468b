"""Protects modes: what makes no sense is refused, and the search's calls play exactly as ``simulate`` plays a plan."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapper.execution_mode import GENERATOR, SYNC, ExecutionMode, mode_of, search_flow
from mapper.model.makespan import makespan
from profiles.errors import InputError
from simulator.plan.algorithms import ALGORITHMS
from simulator.plan.dataflow import CONTROLLER, build_dataflow
from simulator.play.schedule import play
from tests.builders import TOY, make_facts, make_plan, toy_instance, with_engine_pool

OWN = (
    ExecutionMode(dedicated_rollout=True),
    ExecutionMode("one-step-off", dedicated_rollout=True),
    ExecutionMode("one-step-off", dedicated_rollout=True, in_flight_updates=True),
    ExecutionMode("async", dedicated_rollout=True, steps_in_flight=3),
)


@pytest.mark.parametrize(
    ("given_mode", "reason"),
    [
        ({"schedule": "one-step-off"}, "takes a dedicated generation pool"),
        ({"schedule": "async"}, "takes a dedicated generation pool"),
        ({"dedicated_rollout": True, "steps_in_flight": 2}, "only async keeps several"),
        ({"schedule": "async", "dedicated_rollout": True, "steps_in_flight": 0}, "0 steps in flight"),
        ({"dedicated_rollout": True, "in_flight_updates": True}, "in-flight updates need a schedule"),
    ],
)
def test_what_makes_no_sense_is_refused(given_mode, reason) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=reason):
        ExecutionMode(**given_mode)


@pytest.mark.parametrize("algorithm", ["ppo", "remax", "grpo"])
def test_on_its_own_pool_the_generating_actor_is_a_role(algorithm: str) -> None:
    flow = build_dataflow(algorithm, ALGORITHMS[algorithm].roles)
    assert search_flow(flow, SYNC) is flow
    mine = search_flow(flow, ExecutionMode(dedicated_rollout=True))
    assert mine.roles == ("actor", GENERATOR, *flow.roles[1:])
    assert {call.kind for call in mine.calls_of(GENERATOR)} == {"transition", "generate"}
    assert not mine.generates("actor")
    assert [call.key for call in mine.calls] == [call.key for call in flow.calls]


@given(
    algorithm=st.sampled_from(["ppo", "remax", "grpo", "safe-rlhf"]),
    mode=st.sampled_from(OWN),
    seed=st.integers(0, 10_000),
    at=st.integers(0, 10_000),
)
def test_the_searchs_calls_end_when_the_plans_do(algorithm: str, mode: ExecutionMode, seed: int, at: int) -> None:
    """The search's longest path over its own calls, and the event queue over the job's, for any placement."""
    roles = ALGORITHMS[algorithm].roles
    x = toy_instance(algorithm, roles, seed, sizes=(1,), most_rows=1, mode=mode)
    partition = x.partitions[at % len(x.partitions)]
    rng = np.random.default_rng(seed)
    durations = {call.key: float(rng.integers(0, 50)) for call in x.flow.calls}
    pools = {role: str(i) for i, group in enumerate(partition) for role in group.roles}
    records = play(
        build_dataflow(algorithm, roles),
        durations,
        pools | {CONTROLLER: CONTROLLER},
        pools[GENERATOR],
        mode.overlapped,
        mode.in_flight_updates,
    )
    assert {group.device_type for group in partition} == {TOY}
    ends = makespan(x, partition, {key: np.asarray(value) for key, value in durations.items()})
    assert ends == max(record.end_s for record in records)


def test_the_mode_of_a_plan() -> None:
    facts = make_facts(nodes=2)
    plan = make_plan(facts, (facts.dataflow.roles,), (8,), tp=8)
    assert mode_of(plan) == SYNC
    apart = with_engine_pool(plan, 8, schedule="async", steps_in_flight=2)
    assert mode_of(apart) == ExecutionMode("async", True, 2)
