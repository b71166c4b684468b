"""Protects the host memory of a node: shards of every rank of the fullest node, counted from the same classes."""

import pytest

from simulator.host_memory import checkpoint_bytes, host_bytes_per_node
from simulator.pool_memory import memories_on
from tests.builders import make_facts, make_plan, replace_role


@pytest.fixture
def facts():
    return make_facts("ppo", nodes=2)


@pytest.fixture
def plan(facts):
    return make_plan(facts, (("actor", "critic", "reference", "reward"),), (16,))


def test_offloaded_states_of_all_ranks_of_a_node(facts, plan):
    pool = plan.pool_of("critic")
    resident = memories_on(plan, pool, facts)["critic"].resident
    there = host_bytes_per_node(replace_role(plan, "critic", offload=("optimizer",)), facts)
    ranks = min(pool.num_gpus, facts.group.gpus_per_node)
    assert there["offloaded optimizer"] == pytest.approx(ranks * float(resident["optimizer"][0]))
    assert "offloaded parameters" not in there


def test_nothing_is_offloaded_unless_the_plan_says_so(facts, plan):
    assert set(host_bytes_per_node(plan, facts)) == {"checkpoint"}


def test_a_checkpoint_holds_each_parameter_once(facts):
    sizes = checkpoint_bytes(facts)
    per_param = facts.training.param_bytes + facts.training.optimizer_bytes_per_param
    assert sizes["actor"] == pytest.approx(facts.roles["actor"].shape.num_params * per_param)
    assert set(sizes) == {"actor", "critic"}
