"""Protects what an export says of itself: the plan that the system will run is legal there, is what the script says
when it is read back, and its time stands beside the plan's; nothing changes the system's own algorithm unasked."""

import re
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.exports.check import with_rollout_pool
from hybridmap.exports.export import Source, said_aloud
from hybridmap.exports.nemo_rl import export as nemo_rl
from hybridmap.exports.openrlhf import settings as openrlhf_settings
from hybridmap.exports.slime import settings as slime
from hybridmap.exports.systems import SYSTEMS, export_plan
from hybridmap.exports.verl import settings as verl_settings
from hybridmap.exports.verl.follow import followed
from hybridmap.exports.verl.import_run import as_written
from hybridmap.files.plan import plan_file_of
from hybridmap.job.load import job_from_document
from mapper.search.find_plan import find_plan
from profiles.errors import InputError
from simulator.feasibility import check_plan
from simulator.play.simulate import simulate
from tests.builders import replace_role
from tests.hybridmap.exports.plans import GRPO, JOBS, PPO, plan_file

ACTOR, REF = "actor_rollout_ref.actor.megatron", "actor_rollout_ref.ref.megatron"


def source_of(file):
    return Source(file.plan, job_from_document(file.job))


def exports():
    """Every job for every system that runs its algorithm; among them some that ask for more than the defaults."""
    alone = {**GRPO, "models": {"actor": "qwen2.5-1.5b"}}
    lora = {**GRPO, "implementation": {"lora_rank": 16, "old_log_prob": "engine"}}
    more = {"dapo": {**alone, "algorithm": "dapo"}, "rloo": {**GRPO, "algorithm": "rloo"}, "lora": lora}
    files = {name: plan_file(name) for name in JOBS} | {name: planned(raw) for name, raw in more.items()}
    files["async"] = with_rollout_pool(plan_file("grpo"))
    for name, file in files.items():
        for system in SYSTEMS:
            try:
                yield name, system, export_plan(file, name, system)
            except InputError as error:
                assert system in ("nemo-rl", "slime")
                assert re.search("NeMo-RL's GRPO loop|slime runs|slime has no LoRA", str(error))


def planned(raw):
    job = job_from_document(raw)
    return plan_file_of(job, find_plan(replace(job.request(), runners_up=False)), "any", False)


def with_megatron(file, actor, reference):
    """A plan file in which actor and reference have these degrees on the actor's pool."""
    pool = file.plan.pool_of("actor").num_gpus
    plan = file.plan
    for role, stage, degrees in (
        ("actor", "training", actor),
        ("actor", "inference", actor),
        ("reference", "inference", reference),
    ):
        layout = getattr(plan.role(role), stage)
        if layout is not None:
            update = {"micro_batch": 1, **degrees, "dp": pool // (degrees["tp"] * degrees["pp"])}
            plan = replace_role(plan, role, **{stage: layout.model_copy(update=update)})
    return file.model_copy(update={"plan": plan})


def megatron_degrees(settings_, section):
    names = ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor", "virtual_pipeline_model")
    return {name: settings_[f"{section}.{name}_parallel_size"] for name in names}


def laid_out(plan):
    """Roles and layouts, with the roles of a pool in place of its letter."""
    return [
        entry.model_copy(update={"pool": ", ".join(plan.pool_of(entry.role).roles), "generation_pool": None})
        for entry in plan.roles
    ]


@pytest.mark.parametrize("name", JOBS)
def test_verl_runs_the_plan_that_is_said_and_priced(name):
    """The script that was written, read back, is the followed plan to the last field; so is its time."""
    export = export_plan(plan_file(name), name, "verl")
    ours, _ = followed(source_of(plan_file(name)))
    back = as_written(export.files[export.script], export.script, ours)
    assert laid_out(back.plan) == laid_out(ours.plan)
    assert check_plan(back.plan, back.facts) == []
    assert export.times.written_s == simulate(back.plan, back.facts).iteration_s
    assert export.times.written_s == pytest.approx(ours.iteration_s(), rel=1e-9)
    assert export.times.planned_s == pytest.approx(plan_file(name).iteration_s)


def test_verls_megatron_models_of_a_process_get_one_layout():
    """verl's engine keeps the first parallel state of a process, the reference's: two layouts would train in hers."""
    file = with_megatron(plan_file("grpo"), {"tp": 4, "pp": 1}, {"tp": 1, "pp": 2})
    export = export_plan(file, "x", "verl")
    assert megatron_degrees(export.settings, ACTOR) == megatron_degrees(export.settings, REF)
    (point,) = (p for p in export.points if "one Megatron layout a process" in p.text)
    assert export.times.differ
    assert f"{export.times.written_s:,.2f} s" in export.files[export.script]
    pin = yaml.safe_load(point.text.split("pin: ", 1)[1])  # planned so, there is nothing to change
    again = export_plan(planned({**GRPO, "pin": pin}), "x", "verl")
    assert not any("one Megatron layout" in p.text for p in again.points)
    assert not again.times.differ


def test_a_critic_on_gpus_of_its_own_keeps_its_own_layout():
    ours, _ = followed(source_of(plan_file("split")))
    actor, critic = ours.plan.role("actor").training, ours.plan.role("critic").training
    settings_ = export_plan(plan_file("split"), "x", "verl").settings
    assert settings_["critic.megatron.tensor_model_parallel_size"] == critic.tp
    assert settings_[f"{ACTOR}.tensor_model_parallel_size"] == actor.tp


def test_where_no_layout_does_for_all_the_export_says_what_to_pin():
    """A model of 72 billion parameters needs tensor parallelism that a small critic's two KV heads do not allow."""
    raw = {
        "algorithm": "ppo",
        "models": {
            "actor": "qwen2.5-72b",
            "reference": "qwen2.5-72b",
            "critic": "qwen2.5-0.5b",
            "reward": "qwen2.5-0.5b",
        },
        "workload": {"prompts": 64, "prompt_length": 256, "response_length": 256, "minibatches": 1},
        "cluster": [{"device": "h100-80gb-sxm", "nodes": 8}],
        "pin": {
            "actor": {"training": {"tp": 8}},
            "critic": {"training": {"tp": 1, "pp": 1}},
            "reference": {"inference": {"tp": 8}},
            "share": {"require": [["actor", "critic", "reference", "reward"]]},
        },
    }
    with pytest.raises(InputError, match=r"all get one layout, and no layout of the plan does for all.*pin: \{actor:"):
        export_plan(planned(raw), "x", "verl")


DEGREES = st.sampled_from([{"tp": t, "pp": p} for t in (1, 2, 4) for p in (1, 2, 4) if t * p <= 8])


@settings(max_examples=25, deadline=None)
@given(
    DEGREES,
    DEGREES,
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["none", "full"]),
    st.sampled_from(["grpo", "grpo-fsdp"]),
)
def test_a_drawn_plan_is_followed_exactly_or_refused(actor, reference, micro, recompute, name):
    file = plan_file(name)
    if name == "grpo":
        file = with_megatron(file, actor, reference)
    plan = file.plan
    for stage, extra in (("training", {"recompute": recompute}), ("inference", {})):
        layout = getattr(plan.role("actor"), stage).model_copy(update={"micro_batch": micro, **extra})
        plan = replace_role(plan, "actor", **{stage: layout})
    source = source_of(file.model_copy(update={"plan": plan}))
    if check_plan(plan, source.facts):
        return
    try:
        export = SYSTEMS["verl"](source)
    except InputError as error:
        assert "pin" in str(error)
        return
    ours, _ = followed(source)
    back = as_written(export.files[export.script], export.script, ours)
    assert laid_out(back.plan) == laid_out(ours.plan)
    assert export.times.written_s == pytest.approx(ours.iteration_s(), rel=1e-9)
    if name == "grpo":
        assert megatron_degrees(export.settings, ACTOR) == megatron_degrees(export.settings, REF)


@pytest.mark.parametrize("engine", ["megatron-core@0.16", "fsdp@2.13"])
def test_packs_lora_and_a_critic_come_back(engine):
    """Packs with a critic, whose engine has one budget for both its passes; adapters; a reward model beside FSDP."""
    implementation = {"old_log_prob": "engine", "packed_tokens": 2048, "lora_rank": 16}
    file = planned({**PPO, "engines": {"training": engine}, "implementation": implementation})
    export, (ours, _) = export_plan(file, "x", "verl"), followed(source_of(file))
    back = as_written(export.files[export.script], export.script, ours)
    assert laid_out(back.plan) == laid_out(ours.plan)
    assert (back.packed_tokens, back.facts.implementation.lora_rank) == (None, 16)
    assert back.actor.training.token_budget % 2048 == 0
    assert export.times.written_s == pytest.approx(ours.iteration_s(), rel=1e-9)


@pytest.mark.parametrize("system", ["verl", "nemo-rl"])
def test_fp8_is_written_and_read_back(system):
    """Served and trained in FP8 by blocks: keys of the system's own, no point, and its time."""
    raw = {
        **GRPO,
        "models": {"actor": {"shape": "qwen3-4b", "precision": "fp8_block"}},
        "implementation": {"old_log_prob": "trainer", "training_dtype": "fp8_block"},
    }
    export = export_plan(planned(raw), "x", system)
    assert not [point for point in export.points if "precision" in point.place or "dtype" in point.place]
    keys = {
        "verl": {
            "actor_rollout_ref.rollout.quantization": "fp8",
            f"+{ACTOR}.override_transformer_config.fp8": "e4m3",
            f"+{ACTOR}.override_transformer_config.fp8_recipe": "blockwise",
        },
        "nemo-rl": {
            "policy.generation.vllm_cfg.precision": "fp8",
            "policy.megatron_cfg.fp8_cfg.enabled": True,
            "policy.megatron_cfg.fp8_cfg.fp8_recipe": "blockwise",
        },
    }[system]
    assert {key: export.settings[key] for key in keys} == keys
    assert system == "nemo-rl" or not export.times.differ  # the former also waits in host memory, which takes time


def test_packs_are_token_budgets():
    file = planned({**GRPO, "implementation": {"old_log_prob": "trainer", "packed_tokens": 4096}})
    export = export_plan(file, "x", "verl")
    micro = file.plan.role("actor").training.micro_batch
    assert export.settings["actor_rollout_ref.actor.use_dynamic_bsz"] is True
    assert export.settings["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == 4096 * micro
    assert "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu" not in export.settings


def test_old_log_probs_are_the_systems_own_unless_the_job_asks():
    """``bypass_mode=True`` was set for every job that did not say who gives them."""
    key = "algorithm.rollout_correction.bypass_mode"
    silent = planned({k: v for k, v in GRPO.items() if k != "implementation"})
    assert silent.plan.role("actor").inference is None  # priced without a pass
    export = export_plan(silent, "x", "verl")
    assert export.settings[key] is False
    assert "actor.inference" in {point.place for point in export.points}
    assert export.times.written_s > export.times.planned_s
    asked = export_plan(planned({**GRPO, "implementation": {"old_log_prob": "engine"}}), "x", "verl")
    assert asked.settings[key] is True
    assert f"ALGORITHM: {key}=True (verl's default: False)" in asked.files[asked.script]
    for system in ("openrlhf", "nemo-rl"):  # these have no such way
        assert "actor.inference" in {point.place for point in export_plan(silent, "x", system).points}


PLACEMENT = {
    "verl": r"model_engine|data\.|trainer\.n|hybridmap\."
    r"|.*\.(megatron|fsdp_config|fsdp)\."
    r"|.*\.(path|model_path|enable|strategy|ppo_mini_batch_size|enable_gradient_checkpointing|use_dynamic_bsz)"
    r"|.*(micro_batch_size|token_len)_per_gpu|.*log_prob_use_dynamic_bsz|actor_rollout_ref\.hybrid_engine"
    r"|actor_rollout_ref\.rollout\.(?!calculate_log_probs|temperature|top_|val_).*|reward\.reward_model\..*",
    "openrlhf": r"(rollout|vllm|ds|data|reward|critic|ref|actor)\.(?!eps_clip|lora|normalize|clip_range).*"
    r"|train\.(batch_size|micro_batch_size|colocate.*|dynamic_batch_enable|max_tokens_per_gpu)",
    "nemo-rl": r"grpo\.num_.*|data\..*|cluster\..*|policy\..*",
    "slime": r".*-(size|len|per-gpu|gpus|nodes|per-node|per-engine|per-prompt|per-.*-stage|static|requests|parallel)"
    r"|recompute-.*|decoder-last-.*|colocate|balance-data",
}
"""Settings that say where and how fast; every other one is about the algorithm and must be in the system's table."""
TABLES = {
    "verl": verl_settings.ALGORITHM,
    "openrlhf": openrlhf_settings.ALGORITHM,
    "nemo-rl": nemo_rl.ALGORITHM,
    "slime": slime.ALGORITHM,
}


def test_every_setting_of_the_algorithm_is_the_systems_own_or_said_aloud():
    seen = set()
    for name, system, export in exports():
        table = TABLES[system]
        for key, value in export.settings.items():
            plain = key.lstrip("+")
            if plain not in table:
                assert re.fullmatch(f"({PLACEMENT[system]}).*", plain), f"{name}, {system}: {key} is in no table"
                continue
            loud = [text for text in said_aloud(export) if text.startswith(f"ALGORITHM: {plain}={value} (")]
            assert len(loud) == (value != table[plain].value), f"{name}, {system}: {key}={value}"
            for text in loud:
                assert text in export.files[export.script]
                seen.add((system, plain))
    assert {system for system, _ in seen} == set(SYSTEMS)


def test_a_kl_term_is_where_the_system_has_it():
    """OpenRLHF takes KL off the reward by itself; a loss term is no default of it."""
    settings_ = export_plan(plan_file("grpo"), "x", "openrlhf").settings
    assert not any(key.startswith("algo.kl") for key in settings_)
    alone = planned({**GRPO, "models": {"actor": "qwen2.5-1.5b"}})
    assert export_plan(alone, "x", "openrlhf").settings["algo.kl.init_coef"] == 0
    assert export_plan(alone, "x", "nemo-rl").settings["loss_fn.reference_policy_kl_penalty"] == 0.0
    assert "loss_fn.reference_policy_kl_penalty" not in export_plan(plan_file("grpo"), "x", "nemo-rl").settings


def test_another_algorithm_is_said_in_capitals():
    for name, system in (("safe-rlhf", "verl"), ("safe-rlhf", "openrlhf"), ("remax", "openrlhf")):
        export = export_plan(plan_file(name), name, system)
        assert any(line.startswith("ANOTHER ALGORITHM: ") for line in said_aloud(export))
        assert "# ANOTHER ALGORITHM: " in export.files[export.script]
        assert "**ANOTHER ALGORITHM**" in export.files["NOTES.md"]


def test_the_time_of_what_is_written_stands_beside_the_plans(run, planned, tmp_path):
    done = run("export", planned.plan, "--to", "verl", "--out", tmp_path / "launch")
    assert done.exit_code == 0, done.output
    assert re.search(r"time +plan [\d.,]+ s an iteration, as written [\d.,]+ s", done.stdout)
    script = (tmp_path / "launch" / "run_verl.sh").read_text()
    assert re.search(r"^# plan [\d.,]+ s an iteration, as written [\d.,]+ s", script, re.MULTILINE)
    assert "ALGORITHM: algorithm.use_kl_in_reward=True" in done.stderr


def test_verls_fsdp_keeps_a_reference_in_host_memory():
    """It gives FSDP a CPU offload wherever an engine only goes forward; a script that says otherwise is read so too."""
    file = plan_file("grpo-fsdp")
    assert file.plan.role("reference").offload == ()
    ours, points = followed(source_of(file))
    assert ours.plan.role("reference").offload == ("parameters",)
    assert "reference.offload" in {point.place for point in points}
    script = export_plan(file, "grpo-fsdp", "verl").files["run_verl.sh"]
    said = "actor_rollout_ref.ref.fsdp_config.param_offload"
    assert f"{said}=True" in script
    denied = as_written(script.replace(f"{said}=True", f"{said}=False"), "run_verl.sh", ours)
    assert denied.plan.role("reference").offload == ("parameters",)
