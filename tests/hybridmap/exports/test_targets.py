"""Protects plans for a system: it runs them as they are written, and the bound is one under its rules."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hybridmap.exports.export import Source
from hybridmap.exports.follow import degrees_of
from hybridmap.exports.followed import FOLLOWED
from hybridmap.exports.systems import export_plan
from hybridmap.exports.targets import plan_for, target_of
from hybridmap.exports.targets import planned as planned_for
from hybridmap.files.plan import plan_file_of
from hybridmap.job.load import job_from_mapping
from mapper.search.find_plan import find_plan
from profiles.engine_facts import load_generation_engine
from profiles.errors import InputError, UnknownNameError
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan
from simulator.play.simulate import simulate
from simulator.systems.targets import TARGETS
from tests.hybridmap.exports.plans import GRPO, PPO


def job(tmp_path, algorithm="grpo", roles=("actor", "reference"), **more):
    document = {
        "algorithm": algorithm,
        "models": dict.fromkeys(roles, "qwen2.5-7b"),
        "workload": {
            "prompts": 128,
            "samples_per_prompt": 4 if algorithm == "grpo" else 1,
            "prompt_length": 512,
            "response_length": {"distribution": "lognormal", "mean": 600, "max": 2048},
            "minibatches": 4,
        },
        "cluster": [{"device": "h100-80gb-sxm", "nodes": 2}],
        **more,
    }
    return job_from_mapping(document, "job", tmp_path)


def search(one):
    return find_plan(replace(one.request(), runners_up=False, time_limit_s=600.0))


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    return {name: plan_for(job(folder), target, search) for name, target in TARGETS.items()}


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_system_runs_the_plan_as_it_is_written(planned, name):
    """What follows it changes nothing of its layouts, so nothing is left to say about them."""
    found = planned[name]
    again, _ = FOLLOWED[TARGETS[name].system](Source(found.result.plan, found.job))
    for entry in found.result.plan.roles:
        other = again.plan.role(entry.role)
        for stage in ("training", "inference", "generation"):
            mine, theirs = getattr(entry, stage), getattr(other, stage)
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert (mine.tp, mine.pp, mine.dp) == (theirs.tp, theirs.pp, theirs.dp)
    assert again.plan.placement == found.result.plan.placement


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_time_is_that_of_simulate_and_the_bound_is_below(planned, name):
    found = planned[name]
    assert simulate(found.result.plan, found.job.facts()).iteration_s == found.result.iteration_s
    assert found.result.bound_s <= found.result.iteration_s
    assert found.result.gap == pytest.approx(1.0 - found.result.bound_s / found.result.iteration_s)


def test_rules_hold(planned):
    fsdp = planned["verl/fsdp"].result.plan
    for entry in fsdp.roles:
        for layout in (entry.training, entry.inference):
            assert layout is None or (layout.tp, layout.pp, layout.ep) == (1, 1, 1)
    for name in ("verl/megatron", "nemo-rl/megatron", "nemo-rl/dtensor", "openrlhf", "slime"):
        plan = planned[name].result.plan
        layouts = [e.training or e.inference for e in plan.roles if e.pool == plan.role("actor").pool]
        assert len({tuple(degrees_of(layout).values()) for layout in layouts}) == 1, name
    assert all(planned[name].result.plan.role("actor").generation.pp == 1 for name in ("verl/fsdp", "verl/megatron"))


def test_old_log_probs_come_from_the_trainer_as_these_systems_do(planned, tmp_path):
    for found in planned.values():
        assert any(call.key == "compute_log_prob" for call in found.job.facts().dataflow.calls)
    asked = job(tmp_path, implementation={"old_log_prob": "engine"})
    found = plan_for(asked, TARGETS["verl/fsdp"], search)
    assert not any(call.key == "compute_log_prob" for call in found.job.facts().dataflow.calls)


def test_prices_are_those_of_the_systems_own_trainer_and_engine(planned):
    for name, found in planned.items():
        facts = found.job.facts()
        assert facts.training.name.partition("@")[0] in TARGETS[name].trainers
        assert facts.generation.name.partition("@")[0] == (TARGETS[name].generation or "vllm")
    host = {name: found.job.facts().training.step_fixed_s for name, found in planned.items()}
    assert host["verl/fsdp"] != host["verl/megatron"]  # host time of an optimizer step over sharded tensors


@pytest.fixture(scope="module")
def as_each_runs_it(tmp_path_factory):
    """One plan, trainer and engines on the same GPUs: seconds of each call, and the job, as each system runs it."""
    one = job(tmp_path_factory.mktemp("one"), cluster=[{"device": "h100-80gb-sxm", "nodes": 1}])
    layout = ParallelLayout(dp=8, tp=1, pp=1, zero_stage=1, micro_batch=4, recompute="full")
    engine = GenerationLayout(dp=4, tp=2, max_num_seqs=128, kv_cache_bytes=20_000_000_000)
    waits = ("parameters", "optimizer")
    roles = (
        RolePlan(role="actor", pool="A", training=layout, inference=layout, generation=engine, offload=waits),
        RolePlan(role="reference", pool="A", inference=layout, offload=("parameters",)),
    )
    pool = Pool(name="A", device="h100-80gb-sxm", first_gpu=0, num_gpus=8, roles=("actor", "reference"))
    plan = Plan(algorithm="grpo", placement="{actor, reference}", pools=(pool,), roles=roles)
    found = {}
    for name in ("verl/megatron", "nemo-rl/megatron", "openrlhf", "slime"):
        ours, _ = FOLLOWED[TARGETS[name].system](Source(plan, one))
        spans = simulate(ours.plan, ours.facts).spans
        found[name] = {span.call: span.duration_s for span in spans}, ours
    return found


def test_one_plan_is_priced_by_who_keeps_what_in_host_memory(as_each_runs_it):
    verl, nemo_rl, openrlhf, slime = (seconds for seconds, _ in as_each_runs_it.values())
    copy_s = verl["compute_ref_log_prob"] - verl["compute_log_prob"]  # one pass, and parameters that come from the host
    assert copy_s > 0.5
    for swaps in (nemo_rl, slime):  # the policy's goes out and comes back, too
        assert swaps["compute_ref_log_prob"] - verl["compute_log_prob"] == pytest.approx(2 * copy_s, rel=0.01)
    for others in (nemo_rl, openrlhf):  # one engine: what is the same costs the same
        assert others["generate_sequences"] == pytest.approx(verl["generate_sequences"])
        assert others["compute_log_prob"] == pytest.approx(verl["compute_log_prob"])
    assert nemo_rl["transition"] == pytest.approx(verl["transition"])
    for call in (
        "update_actor",
        "transition",
    ):  # DeepSpeed's optimizer states wait there alone, and ZeRO 1 gathers bare
        assert 0.5 * copy_s < verl[call] - openrlhf[call] < copy_s


def test_openrlhf_is_priced_as_deepspeed_of_its_release(as_each_runs_it):
    _, ours = as_each_runs_it["openrlhf"]
    assert ours.facts.training.name == "deepspeed@0.19"
    assert ours.plan.role("actor").offload == ("optimizer",)
    assert ours.plan.role("reference").offload == ()  # only ZeRO 3 keeps parameters in host memory
    bounds = find_plan(replace(ours.job.request(), runners_up=False)).plan.role("actor").training
    assert bounds.zero_stage in ours.facts.training.zero_stages == (1, 2, 3)


def test_slime_hands_over_to_sglang_and_generates_with_it(as_each_runs_it, tmp_path):
    (verl, _), (slime, runs) = as_each_runs_it["verl/megatron"], as_each_runs_it["slime"]
    assert slime["generate_sequences"] != pytest.approx(verl["generate_sequences"], rel=0.05)
    vllm, sglang = load_generation_engine("vllm@0.32"), runs.facts.generation
    assert slime["transition"] - verl["transition"] > 0.9 * (sglang.transition_fixed_s - vllm.transition_fixed_s) > 0
    with_vllm = replace(runs.facts, generation=vllm)
    spans = {span.call: span.duration_s for span in simulate(runs.plan, with_vllm).spans}
    for call in ("transition", "generate_sequences", "update_actor"):
        assert spans[call] == pytest.approx(verl[call], rel=0.01), call  # the engine's facts are all of the difference


def test_a_pin_that_contradicts_a_rule_is_named(tmp_path):
    pinned = job(tmp_path, pin={"actor": {"training": {"tp": 4}}})
    with pytest.raises(InputError, match=r"pin\.actor\.training\.tp: 4 is pinned, and verl/fsdp 0\.9\.1 has 1 there"):
        plan_for(pinned, TARGETS["verl/fsdp"], search)


def test_targets_are_known_with_and_without_their_release():
    assert target_of("verl@0.9/megatron") is target_of("verl/megatron") is target_of("verl@0.9.1/megatron")
    with pytest.raises(InputError, match=r"the rules here are those of verl 0\.9\.1"):
        target_of("verl@0.7/megatron")
    with pytest.raises(UnknownNameError, match="unknown target 'verl'"):
        target_of("verl")


def test_a_job_names_its_target_and_its_plan_exports_there(run, tmp_path):
    """The target of a job holds the search as the option does, stays in the plan, and is where an export goes."""
    named = job(tmp_path, target="openrlhf@0.11")
    result, found, held = planned_for(named, None, search)
    assert "planned for openrlhf, release 0.11.2" in held[0]
    assert result.plan.role("actor").generation.max_num_seqs == 128
    assert found.document["target"] == "openrlhf@0.11"
    record = plan_file_of(found, result, "any", False)
    (tmp_path / "plan.json").write_text(record.model_dump_json())
    done = run("export", tmp_path / "plan.json")
    assert "openrlhf.cli.train_ppo_ray" in done.stdout
    free, _, held = planned_for(job(tmp_path, target="hybridmap"), None, search)
    assert held == []
    bare = plan_file_of(job(tmp_path), free, "any", False)
    (tmp_path / "bare.json").write_text(bare.model_dump_json())
    refused = run("export", tmp_path / "bare.json")
    assert refused.exit_code == 2
    assert "give --to verl" in refused.stderr


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_rule_says_where_it_stands(name):
    assert all(re.match(r"[\w/]+\.py:\d+", rule.source) for rule in TARGETS[name].rules)


def test_a_larger_critic_has_the_layout_of_its_process(tmp_path):
    """The actor's own best layout does not hold it, the critic's does not cut the actor's heads: another one does."""
    models = {"actor": "qwen2.5-7b", "critic": "qwen2.5-32b", "reference": "qwen2.5-7b", "reward": "qwen2.5-7b"}
    found = plan_for(job_from_mapping({**PPO, "models": models}, "job", tmp_path), TARGETS["verl/megatron"], search)
    entries = [found.result.plan.role(role) for role in ("actor", "critic", "reference")]
    assert len({entry.pool for entry in entries}) == 1
    assert len({tuple(degrees_of(entry.training or entry.inference).values()) for entry in entries}) == 1


@pytest.mark.parametrize("schedule", ["sync", "async"])
def test_a_plan_for_openrlhf_is_written_as_planned_on_the_gpus_there_are(tmp_path, schedule):
    """Its reward model is scored in the micro-batches of the others, and no pool is on top of the cluster's."""
    one_node = [{"device": "h100-80gb-sxm", "nodes": 1}]
    asked = job_from_mapping({**PPO, "cluster": one_node, "schedule": schedule}, "job", tmp_path)
    found = plan_for(asked, TARGETS["openrlhf"], search)
    export = export_plan(plan_file_of(found.job, found.result, "any", False), "job", "openrlhf")
    assert export.times.written_s == pytest.approx(found.result.iteration_s, rel=1e-9)
    assert found.result.plan.num_gpus <= 8


def test_of_several_schedules_the_best_that_the_system_runs_is_planned(tmp_path):
    small = job_from_mapping({**GRPO, "schedule": "any"}, "job", tmp_path)
    best = plan_for(small, TARGETS["verl/fsdp"], search)
    sections = [{"kind": "sync"}, {"kind": "one-step-off"}]
    alone = [
        plan_for(job_from_mapping({**GRPO, "schedule": one}, "job", tmp_path), TARGETS["verl/fsdp"], search)
        for one in sections
    ]
    assert best.result.iteration_s == min(found.result.iteration_s for found in alone)
    assert best.result.bound_s <= best.result.iteration_s


@pytest.mark.parametrize("name", ["nemo-rl/megatron", "slime"])
def test_a_reward_model_that_no_setting_starts_is_said_and_not_priced(tmp_path, name):
    with_reward = {**GRPO, "models": {**GRPO["models"], "reward": "qwen2.5-1.5b"}}
    found = plan_for(job_from_mapping(with_reward, "job", tmp_path), TARGETS[name], search)
    assert [point.place for point in found.points] == ["reward"]
    assert "it is not in these times" in found.points[0].text
    assert [entry.role for entry in found.result.plan.roles] == ["actor", "reference"]


@pytest.mark.parametrize("name", ["nemo-rl/megatron", "slime"])
def test_an_algorithm_that_a_system_lacks_is_refused_by_its_name(name):
    """Not by the reward model that would have been left to hand, and before a search."""
    roles = ("actor", "critic", "reference", "reward", "cost")
    job = job_from_mapping(
        PPO | {"algorithm": "safe-rlhf", "models": dict.fromkeys(roles, "llama-3.2-1b")}, "job", Path()
    )
    with pytest.raises(InputError, match="not safe-rlhf"):
        plan_for(job, target_of(name), lambda _: pytest.fail("searched first"))
