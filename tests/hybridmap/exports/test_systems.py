"""Protects the OpenRLHF and NeMo-RL exports and the command: flags follow the plan, and points where they cannot."""

import json
import shlex
import shutil
import subprocess

import pytest
import yaml

from hybridmap.exports.systems import SYSTEMS, export_plan
from profiles.errors import InputError
from tests.builders import replace_role
from tests.hybridmap.exports.plans import JOBS, plan_file


def exported(name, system):
    return export_plan(plan_file(name), name, system)


@pytest.mark.parametrize("name", JOBS)
def test_openrlhf_gets_the_plans_degrees(name):
    plan, settings = plan_file(name).plan, exported(name, "openrlhf").settings
    actor = plan.role("actor")
    assert settings["ds.tensor_parallel_size"] == actor.training.tp
    if actor.training.token_budget is None:
        assert settings["train.dynamic_batch_enable"] is True
        assert settings["train.max_tokens_per_gpu"] >= actor.training.micro_batch * 512
    else:
        assert settings["train.max_tokens_per_gpu"] == actor.training.token_budget
        assert settings["train.dynamic_batch_enable"] is True
    assert settings["vllm.num_engines"] == actor.generation.dp
    gpus = settings["actor.num_nodes"] * settings["actor.num_gpus_per_node"]
    assert gpus == plan.pool_of("actor").num_gpus
    assert ("train.colocate_all" in settings) == (len(plan.pools) == 1)


def test_openrlhf_shares_what_it_can():
    settings = exported("split", "openrlhf").settings
    assert settings["train.colocate_actor_ref"] is True
    assert settings["train.colocate_critic_reward"] is True
    alone = exported("standalone", "openrlhf").settings
    assert not any(key.startswith("train.colocate") for key in alone)


def test_openrlhf_sleeps_where_optimizers_wait_and_with_a_critic_beside_the_actor():
    """CPU Adam (--ds.adam_offload) is no copy of states and is never written."""
    assert exported("colocate", "openrlhf").settings["ds.enable_sleep"] is True  # critic and actor take turns
    assert "ds.enable_sleep" not in exported("split", "openrlhf").settings  # they train at once
    free = plan_file("grpo")
    waits = free.model_copy(update={"plan": replace_role(free.plan, "actor", offload=("optimizer",))})
    for file, sleeps in ((free, False), (waits, True)):
        settings = export_plan(file, "x", "openrlhf").settings
        assert ("ds.enable_sleep" in settings) is sleeps
        assert "ds.adam_offload" not in settings


def test_openrlhf_says_what_it_lacks():
    for name in JOBS:
        plan, export = plan_file(name).plan, exported(name, "openrlhf")
        places = {point.place for point in export.points}
        trained = [e for e in plan.roles if e.training is not None and e.training.pp > 1]
        assert {f"{entry.role}.pp" for entry in trained} <= places
    assert "cost" in {point.place for point in exported("safe-rlhf", "openrlhf").points}


def test_the_openrlhf_script_is_shell_with_every_flag():
    export = exported("colocate", "openrlhf")
    words = shlex.split(export.files["run_openrlhf.sh"], comments=True)
    assert {f"--{key}" for key in export.settings} <= set(words)


def test_a_nemo_rl_recipe_holds_the_plan():
    export = exported("grpo", "nemo-rl")
    recipe = yaml.safe_load(export.files["recipe.yaml"])
    plan = plan_file("grpo").plan.role("actor")
    megatron = recipe["policy"]["megatron_cfg"]
    assert megatron["tensor_model_parallel_size"] == plan.training.tp
    assert megatron["pipeline_model_parallel_size"] == plan.training.pp
    assert recipe["policy"]["generation"]["vllm_cfg"]["tensor_parallel_size"] == plan.generation.tp
    assert recipe["grpo"]["num_generations_per_prompt"] == 4
    assert exported("grpo-fsdp", "nemo-rl").settings["policy.dtensor_cfg.enabled"] is True


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to start the script with")
def test_a_nemo_rl_recipe_works_from_the_folder_it_is_written_to(tmp_path):
    """Its base is named by the checkout's folder, not beside the recipe; and the script starts a program of 0.7."""
    export, checkout, there = exported("grpo", "nemo-rl"), tmp_path / "NeMo RL", tmp_path / "launch"
    for folder in (checkout, there, tmp_path / "bin"):
        folder.mkdir()
    for name, text in export.files.items():
        (there / name).write_text(text)
    stub = tmp_path / "bin" / "uv"
    stub.write_text('#!/bin/sh\npwd\nprintf "%s\\n" "$NEMO_RL" "$@"\n')
    stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "NEMO_RL": "../NeMo RL"}
    words = ["bash", "run_nemo_rl.sh", "grpo.max_num_steps=1"]
    done = subprocess.run(words, cwd=there, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    where, variable, *started = done.stdout.splitlines()
    assert where == variable == str(checkout)
    recipe = str(there / "recipe.yaml")
    assert started == ["run", "examples/run_grpo.py", "--config", recipe, "grpo.max_num_steps=1"]
    base = yaml.safe_load((there / "recipe.yaml").read_text())["defaults"]
    assert base == "${oc.env:NEMO_RL}/examples/configs/grpo_math_1B.yaml"
    missing = subprocess.run(
        words, cwd=there, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60
    )
    assert missing.returncode != 0
    assert "set NEMO_RL to a checkout of NeMo-RL 0.7.0" in missing.stderr


def test_nemo_rl_counts_the_nodes_of_policy_and_engines_together():
    """On one node both share it; the nodes of two pools were counted one each."""
    file = plan_file("grpo")
    actor = file.plan.role("actor")
    pool, half = file.plan.pool_of("actor"), 4
    small = pool.model_copy(update={"num_gpus": half})
    own = pool.model_copy(update={"name": "G", "first_gpu": half, "num_gpus": half, "roles": ()})
    plan = file.plan.model_copy(update={"pools": (small, own)})
    for role in ("actor", "reference"):
        for stage in ("training", "inference", "generation"):
            layout = getattr(plan.role(role), stage)
            if layout is not None:
                spread = layout.model_copy(
                    update={"dp": half, "tp": 1, "pp": 1} | ({} if stage == "generation" else {"cp": 1})
                )
                plan = replace_role(plan, role, **{stage: spread})
    plan = replace_role(plan, "actor", generation_pool="G")
    assert actor.generation_pool is None
    settings = export_plan(file.model_copy(update={"plan": plan}), "x", "nemo-rl").settings
    assert (settings["cluster.num_nodes"], settings["cluster.gpus_per_node"]) == (1, 8)
    assert settings["policy.generation.colocated.resources.gpus_per_node"] == 4


def test_nemo_rl_has_no_critic():
    with pytest.raises(InputError, match="export to verl or openrlhf"):
        exported("colocate", "nemo-rl")


def test_no_flag_is_written_twice():
    """``Settings.put`` asserts it; here every job goes through every system."""
    for system in SYSTEMS:
        for name in JOBS:
            try:
                assert exported(name, system).settings
            except InputError:
                assert system in ("nemo-rl", "slime")


def test_the_command_prints_the_script_alone(run, planned):
    result = run("export", planned.plan, "--to", "verl")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("#!/usr/bin/env bash")
    assert "cannot follow reward.inference" in result.stderr


def test_out_gets_everything(run, planned, tmp_path):
    result = run("export", planned.plan, "--to", "openrlhf", "--out", tmp_path / "launch", "--json")
    answer = json.loads(result.stdout)
    assert sorted(p.name for p in (tmp_path / "launch").iterdir()) == sorted(answer["files"])
    assert (tmp_path / "launch" / "run_openrlhf.sh").stat().st_mode & 0o100
    assert answer["cannot_follow"]


@pytest.mark.parametrize(("name", "role"), [("standalone", "critic"), ("grpo", "actor")])
def test_scoring_on_a_copy_in_another_layout_is_a_point_of_every_system(name, role):
    """A plan that no system can follow there: a copy in one more data-parallel half, half as wide."""
    file = plan_file(name)
    entry = file.plan.role(role)
    trained = entry.training.model_copy(update={"tp": 2, "dp": max(entry.training.num_gpus // 2, 1), "pp": 1})
    copy = trained.model_copy(update={"tp": 1, "dp": trained.num_gpus, "zero_stage": 0, "recompute": "none"})
    plan = replace_role(file.plan, role, training=trained, inference=copy)
    changed = file.model_copy(update={"plan": plan})
    for system in SYSTEMS if name == "grpo" else ("verl", "openrlhf"):
        points = {point.place: point.text for point in export_plan(changed, name, system).points}
        assert f"on a copy in t1 p1 d{copy.dp}" in points[f"{role}.inference"]
        assert f"{role}.inference" not in {point.place for point in export_plan(file, name, system).points}
