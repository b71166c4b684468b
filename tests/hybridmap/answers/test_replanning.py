"""Protects plans for runs that have lost devices: they fit what is left, and are those that the mapper finds."""

import json
from pathlib import Path

import pytest
import yaml

from executor.controller.pools import Devices
from hybridmap.answers.replanning import on_fewer, replanner
from hybridmap.files.plan import read_plan
from hybridmap.job.load import load_job
from profiles.errors import InfeasibleError, InputError, NotYetError
from tests.executor.plans import TINY, learned, metrics, plan

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
MIXED = EXAMPLES / "grpo-qwen2.5-7b-16xh100-32xa100.yaml"
H100, A100 = "h100-80gb-sxm", "a100-80gb-sxm"


@pytest.fixture(scope="module")
def tiny():
    return load_job(EXAMPLES / "run" / "ppo-tiny.yaml"), read_plan(EXAMPLES / "run" / "ppo-tiny-plan.json")[0]


def anything(plan):
    """A run that can run every plan."""


def test_what_is_left_is_whole_nodes_or_a_part_of_one():
    facts = load_job(EXAMPLES / "ppo-7b-16xa100.yaml").facts()
    assert on_fewer(facts, Devices(16)).group is facts.group
    assert on_fewer(facts, Devices(99)).group is facts.group
    groups = {n: on_fewer(facts, Devices(n)).group for n in (15, 8, 7, 3, 1)}
    sizes = {n: (group.nodes, group.gpus_per_node) for n, group in groups.items()}
    assert sizes == {15: (1, 8), 8: (1, 8), 7: (1, 7), 3: (1, 3), 1: (1, 1)}


def test_the_best_plan_on_what_is_left_and_the_old_one_scaled_down_where_that_cannot_run(tiny):
    job, plan = tiny
    found = replanner(job, plan, anything)(Devices(1))
    assert found.num_gpus == 1
    assert [pool.roles for pool in found.pools] == [("actor", "critic", "reference", "reward")]
    four = replanner(job, plan, anything)(Devices(4))
    assert four.num_gpus <= 4

    def refused(plan):
        raise NotYetError("zero_stage 3 cannot run")

    with pytest.raises(InfeasibleError, match="has 2 pools and needs a device for each, there are 1"):
        replanner(job, plan, refused)(Devices(1))
    assert replanner(job, four, refused)(Devices(4)) == four


def test_where_nothing_fits_the_mapper_says_what_would():
    job = load_job(EXAMPLES / "ppo-7b-16xa100.yaml")
    plan = read_plan(EXAMPLES / "run" / "ppo-tiny-plan.json")[0]
    with pytest.raises(InfeasibleError) as told:
        replanner(job, plan, anything)(Devices(1))
    assert told.value.fewest_gpus is None or told.value.fewest_gpus > 1


def test_of_a_mixed_cluster_what_is_left_is_counted_by_kind():
    facts = load_job(MIXED).facts()
    whole = {H100: 16, A100: 32}
    assert on_fewer(facts, Devices(48, whole)).device_types == (H100, A100)
    fewer = on_fewer(facts, Devices(27, {H100: 16, A100: 11}))
    assert (fewer.group, fewer.on(A100).group.nodes) == (facts.group, 1)
    alone = on_fewer(facts, Devices(32, {A100: 32}))
    assert (alone.device_types, alone.group, alone.device.name) == ((A100,), facts.on(A100).group, A100)
    with pytest.raises(InfeasibleError, match=r"8 devices \(8 x h200-141gb-sxm\) are left, none of the job's h100"):
        on_fewer(facts, Devices(8, {"h200-141gb-sxm": 8}))
    assert on_fewer(facts, Devices(48)) is facts
    with pytest.raises(
        InfeasibleError, match=r"do not say which of h100-80gb-sxm, a100-80gb-sxm they have; start each"
    ):
        on_fewer(facts, Devices(40))


def test_the_best_plan_of_a_mixed_cluster_is_on_the_kinds_that_are_left(tiny, tmp_path):
    job = load_job(MIXED)
    plan = replanner(job, tiny[1], anything)(Devices(32, {H100: 8, A100: 24}))
    assert plan.gpus[H100] <= 8
    assert 0 < plan.gpus[A100] <= 24
    assert set(replanner(job, tiny[1], anything)(Devices(16, {H100: 16})).gpus) == {H100}
    pinned = tmp_path / "job.yaml"
    pinned.write_text(MIXED.read_text() + "pin: {reference: {device: a100-80gb-sxm}}\n")
    with pytest.raises(InputError, match="device pinned for reference 'a100-80gb-sxm'"):
        replanner(load_job(pinned), tiny[1], anything)(Devices(16, {H100: 16}))


def toy(folder, address):
    """A small job on one node of each of two kinds, and a plan that needs both."""
    document = {
        "algorithm": "grpo",
        "models": dict.fromkeys(("actor", "reference"), str(TINY)),
        "workload": {"prompts": 4, "samples_per_prompt": 2, "prompt_length": 4, "response_length": 3, "minibatches": 2},
        "cluster": [{"device": kind, "nodes": 1, "gpus_per_node": 2} for kind in (H100, A100)],
    }
    run = {
        "weights": {"actor": str(TINY)},
        "dtype": "fp32",
        "learning_rate": 1e-3,
        "seed": 1,
        "launcher": "ray",
        "data": {"task": "sorted-digits", "digits": 4, "alphabet": "0123456789=+"},
        "ray_address": address,
        "reward": {"function": "per-character"},
        "on_failure": "replan",
        "checkpoint": {"every": 1},
        "timeouts": {"collective_s": 300},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(document | {"run": run}))
    made = plan("grpo", {"A": (("actor",), (1, 1, 2)), "B": (("reference",), (1, 1, 2))})
    pools = tuple(
        pool.model_copy(update={"device": kind, "first_gpu": 0})
        for pool, kind in zip(made.pools, (H100, A100), strict=True)
    )
    return load_job(path), made.model_copy(update={"pools": pools})


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_run_that_loses_a_kind_of_gpu_goes_on_with_the_mappers_plan_on_the_other(tmp_path):
    """Two nodes of two kinds, a pool on each; one goes after two iterations."""
    from ray.cluster_utils import Cluster

    from executor.run import run
    from executor.run_settings import require_runnable

    nodes = Cluster()
    try:
        made = {
            kind: nodes.add_node(num_cpus=2, resources={kind: 2}, object_store_memory=100 << 20)
            for kind in (H100, A100)
        }
        job, both = toy(tmp_path, nodes.address)
        run(job.facts(), both, job.run.model_copy(update={"on_failure": "stop"}), tmp_path / "whole", 4)
        plans = []

        def planned(left):
            plans.append((left, replanner(job, both, lambda found: require_runnable(found, job.run.engines))(left)))
            return plans[-1][1]

        def watch(iteration, line):
            if iteration == 1 and not plans and A100 in made:
                nodes.remove_node(made.pop(A100), allow_graceful=False)

        run(job.facts(), both, job.run, tmp_path / "out", 4, watch=watch, replan=planned)
        left, chosen = plans[-1]
        assert left == Devices(2, {H100: 2})
        assert set(chosen.gpus) == {H100}
        curve, whole = metrics(tmp_path / "out"), metrics(tmp_path / "whole")
        assert [line["iteration"] for line in curve] == list(range(4))
        assert [line["actor/optimizer_steps"] for line in curve] == [2.0, 4.0, 6.0, 8.0]
        for mine, theirs in zip(curve, whole, strict=True):
            assert learned(mine) == pytest.approx(learned(theirs), rel=2e-3, abs=2e-5)
        lines = (tmp_path / "out" / "failures.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["num_devices"] == chosen.num_gpus <= 2
    finally:
        nodes.shutdown()
