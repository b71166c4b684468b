"""Protects plans for runs that have lost devices: they fit what is left, and are those that the mapper finds."""

from pathlib import Path

import pytest

from hybridmap.config import load_job
from hybridmap.plan_file import read_plan
from hybridmap.replanning import on_fewer, replanner
from profiles.errors import InfeasibleError, NotYetError

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def tiny():
    return load_job(EXAMPLES / "run" / "ppo-tiny.yaml"), read_plan(EXAMPLES / "run" / "ppo-tiny-plan.json")[0]


def anything(plan):
    """A run that can run every plan."""


def test_what_is_left_is_whole_nodes_or_a_part_of_one():
    facts = load_job(EXAMPLES / "ppo-7b-16xa100.yaml").facts()
    assert on_fewer(facts, 16) is facts
    assert on_fewer(facts, 99) is facts
    sizes = {n: (on_fewer(facts, n).group.nodes, on_fewer(facts, n).group.gpus_per_node) for n in (15, 8, 7, 3, 1)}
    assert sizes == {15: (1, 8), 8: (1, 8), 7: (1, 7), 3: (1, 3), 1: (1, 1)}


def test_the_best_plan_on_what_is_left_and_the_old_one_scaled_down_where_that_cannot_run(tiny):
    job, plan = tiny
    found = replanner(job, plan, anything)(1)
    assert found.num_gpus == 1
    assert [pool.roles for pool in found.pools] == [("actor", "critic", "reference", "reward")]
    four = replanner(job, plan, anything)(4)
    assert four.num_gpus <= 4

    def refused(plan):
        raise NotYetError("zero_stage 3 cannot run")

    with pytest.raises(InfeasibleError, match="has 2 pools and needs a device for each, there are 1"):
        replanner(job, plan, refused)(1)
    assert replanner(job, four, refused)(4) == four


def test_where_nothing_fits_the_mapper_says_what_would():
    job = load_job(EXAMPLES / "ppo-7b-16xa100.yaml")
    plan = read_plan(EXAMPLES / "run" / "ppo-tiny-plan.json")[0]
    with pytest.raises(InfeasibleError) as told:
        replanner(job, plan, anything)(1)
    assert told.value.fewest_gpus is None or told.value.fewest_gpus > 1


def test_a_cluster_of_several_kinds_is_refused_before_the_run(tiny):
    job = load_job(EXAMPLES / "grpo-qwen2.5-7b-16xh100-32xa100.yaml")
    with pytest.raises(NotYetError, match="replan cannot tell yet which of h100-80gb-sxm, a100-80gb-sxm are left"):
        replanner(job, tiny[1], anything)
