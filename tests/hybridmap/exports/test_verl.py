"""Protects the verl export: keys follow the plan, what cannot is said, and reading the script gives the plan back."""

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.exports.check import with_rollout_pool
from hybridmap.exports.export import Points
from hybridmap.exports.imported import Given
from hybridmap.exports.recompute import note_selective, recomputed_modules
from hybridmap.exports.systems import export_plan
from hybridmap.exports.verl.defaults import DEFAULTS
from hybridmap.exports.verl.import_run import import_verl
from hybridmap.exports.verl.layouts import kernel_keys
from hybridmap.exports.verl.read import VerlConfig, read_verl_config
from profiles.errors import InputError
from profiles.models.catalogue import load_model
from simulator.plan.plan import ParallelLayout
from tests.hybridmap.exports.plans import JOBS, plan_file

MEGATRON = "actor_rollout_ref.actor.megatron"
STAGES = ("training", "inference", "generation")


def exported(name):
    return export_plan(plan_file(name), name, "verl")


def imported(export, tmp_path, **given):
    script = tmp_path / export.script
    script.write_text(export.files[export.script])
    return import_verl(read_verl_config(script), Given("h100-80gb-sxm", **given))


def places(export):
    return tuple(point.place for point in export.points)


def without(plan, refused):
    """A plan's layouts by role and stage, less what the export said it cannot follow."""
    out = {}
    for entry in plan.roles:
        for stage in STAGES:
            place = f"{entry.role}.{stage}"
            layout = getattr(entry, stage)
            if layout is None or place in refused or entry.role in refused:
                continue
            fields = {k: v for k, v in layout.model_dump().items() if f"{place}.{k}" not in refused}
            if stage == "inference":  # neither means anything to a forward pass
                for key in ("recompute", "zero_stage"):
                    fields.pop(key)
            fields.pop("sequence_parallel", None)
            fields.pop("micro_batch", None)  # written in tokens: test_follow has them to the token
            out[place] = fields
    return out


@pytest.mark.parametrize("name", [n for n in JOBS if n != "safe-rlhf"])
def test_the_round_trip_gives_the_plan_back(name, tmp_path):
    file, export = plan_file(name), exported(name)
    mean = 300 if name.startswith("grpo") else None
    back = imported(export, tmp_path, mean_response_length=mean).plan
    refused = places(export)
    assert without(back, refused) == without(file.plan, refused)
    if not any(place.endswith("pool") for place in refused):
        groups = {frozenset(pool.roles): pool.num_gpus for pool in file.plan.pools}
        assert {frozenset(pool.roles): pool.num_gpus for pool in back.pools} == groups


def test_gpus_for_generation_alone_come_back(tmp_path):
    file = with_rollout_pool(plan_file("grpo"))
    export = export_plan(file, "async", "verl")
    assert export.settings["trainer.v1.trainer_mode"] == "separate_async"
    back = imported(export, tmp_path, mean_response_length=300).plan
    assert without(back, places(export)) == without(file.plan, places(export))
    assert (back.schedule, back.steps_in_flight, back.in_flight_updates) == ("async", 1, True)
    assert back.generation_pool_of("actor").num_gpus == file.plan.generation_pool_of("actor").num_gpus
    assert back.generation_pool_of("actor").roles == ()


def test_the_job_comes_back_too(tmp_path):
    job = imported(exported("grpo"), tmp_path, mean_response_length=300).job.document
    assert job == plan_file("grpo").job


def known(config, key):
    """Whether reading knows a key, and where its default points."""
    try:
        config.get(key)
    except KeyError:
        return False
    return True


def test_every_key_that_is_set_can_be_read_or_is_known_not_to_matter():
    ignored = (
        "data_parallel",
        "max_num_batched",
        "free_cache",
        "enforce_eager",
        "calculate_log_probs",
        "strategy",
        "recompute_m",
        "recompute_n",
        "expert_tensor",
        "pipeline_stage",
        "rollout.name",
        "rollout.prompt_length",
        "rollout.response_length",
        "rollout.gpu_memory",
        "override_transformer_config",
        "use_dynamic_bsz",
        "ppo_mini_batch",
        "ppo_epochs",
        "clip_ratio",
        "hybrid_engine",
        "backend",
    )
    config = VerlConfig("x", {})
    keys = {key.lstrip("+") for name in JOBS for key in exported(name).settings}
    read = {key for key in keys if not any(part in key for part in ignored)}
    assert len(read) > 10
    assert not known(config, "actor_rollout_ref.no_such_key")
    assert {key for key in read if not known(config, key)} == set()


@pytest.mark.parametrize(
    ("model", "modules", "kernels"),
    [
        ("qwen3-30b-a3b", ["layernorm", "moe_act"], {"apply_rope_fusion": True, "moe_router_dtype": "fp32"}),
        ("deepseek-v3", ["layernorm"], {"moe_router_dtype": "fp32"}),  # dense layers, shared experts, latent attention
        ("qwen3-8b", ["layernorm"], {"apply_rope_fusion": True}),
    ],
)
def test_megatron_is_told_what_its_own_recipes_tell_it(model, modules, kernels):
    shape, points = load_model(model), Points()
    layout = ParallelLayout(dp=8, zero_stage=1, micro_batch=1, recompute="selective")
    note_selective("actor", layout, shape, points)
    assert (recomputed_modules(shape), kernel_keys(shape)) == (modules, kernels)
    assert [point.place for point in points.found] == ([] if "moe_act" in modules else ["actor.training.recompute"])


def test_what_the_engine_needs_is_exported_with_it():
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in exported("grpo").files["run_verl.sh"]
    assert "CUDA_DEVICE" not in exported("grpo-fsdp").files["run_verl.sh"]
    file = plan_file("grpo-fsdp")
    fused = {**file.job, "implementation": {**file.job["implementation"], "loss_head": "fused"}}
    settings = export_plan(file.model_copy(update={"job": fused}), "fused", "verl").settings
    assert settings["actor_rollout_ref.model.use_fused_kernels"] is True


def test_a_critic_on_gpus_of_its_own_needs_the_subclass():
    export = exported("split")
    assert "hybridmap_verl.py" in export.files
    assert export.settings["trainer.v1.trainer_mode"] == "hybridmap_pools"
    assert "hybridmap_verl.py" in export.files[export.script]
    compile(export.files["hybridmap_verl.py"], "hybridmap_verl.py", "exec")
    assert "hybridmap_verl.py" not in exported("colocate").files


def test_what_verl_cannot_do_is_said():
    assert "cost" in places(exported("safe-rlhf"))
    assert "reference.pool" in places(exported("standalone"))
    assert "reward.inference" in places(exported("colocate"))
    assert exported("grpo-fsdp").settings["model_engine"] == "dp"


def test_the_script_is_shell_that_holds_every_setting():
    for name in JOBS:
        export = exported(name)
        words = shlex.split(export.files[export.script], comments=True)
        assert sum("=" in word and word.split("=")[0] in export.settings for word in words) == len(export.settings)


def test_a_users_script_with_variables(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "NNODES=${NNODES:-2}\nMODEL=Qwen/Qwen2.5-7B-Instruct\npython3 -m verl.trainer.main_ppo "
        "--config-name=ppo_megatron_trainer algorithm.adv_estimator=grpo trainer.nnodes=$NNODES "
        "actor_rollout_ref.model.path=$MODEL data.train_files=$HOME/x.parquet \\\n"
        "  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 $@\n"
    )
    config = read_verl_config(path)
    assert config.get("trainer.nnodes") == 2
    assert config.get("actor_rollout_ref.model.path") == "Qwen/Qwen2.5-7B-Instruct"
    assert config.get("model_engine") == "megatron"
    run = import_verl(config, Given("h100-80gb-sxm"))
    assert run.job.document["models"]["actor"]["shape"] == "qwen2.5-7b"
    assert run.plan.num_gpus == 16


def test_hydras_output_folder(tmp_path):
    flat = tmp_path / "overrides.yaml"
    flat.write_text("- trainer.nnodes=2\n- actor_rollout_ref.rollout.n=8\n")
    nested = tmp_path / "config.yaml"
    nested.write_text(
        "trainer: {nnodes: 2}\nactor_rollout_ref:\n  rollout: {n: 8, n_gpus_per_node: '${oc.select:trainer.x,8}'}\n"
    )
    for path in (flat, nested):
        config = read_verl_config(path)
        assert (config.get("trainer.nnodes"), config.get("actor_rollout_ref.rollout.n")) == (2, 8)
        assert config.get("actor_rollout_ref.rollout.n_gpus_per_node") == 8


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.adv_estimator=grp", "did you mean"),
        ("actor_rollout_ref.model.path=mine/unheard-of", "--model actor=NAME"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=2048", "more than train_batch_size"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=3", "replicas of 3"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null", "verl refuses that too"),
        ("critic.enable=True", "adv_estimator=grpo has none, not critic.enable=True"),
        ("trainer.nnodes=two", "expected a whole number"),
        ("actor_rollout_ref.rollout.gpu_memory_utilization=most", "expected a share between 0 and 1"),
        (
            f"{MEGATRON}.override_transformer_config.recompute_granularity=al model_engine=megatron",
            "unknown value of",
        ),
        (
            f"{MEGATRON}.virtual_pipeline_model_parallel_size=x model_engine=megatron",
            "whole number",
        ),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, override, message):
    path = tmp_path / "run.sh"
    path.write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 "
        f"{override}\n"
    )
    with pytest.raises(InputError, match=message):
        import_verl(read_verl_config(path), Given("h100-80gb-sxm"))


def test_data_parallel_engines_of_a_dense_model_are_replicas(tmp_path):
    """Only a mixture's engines share something, their experts; no engine runs a dense model with copied attention."""
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.data_parallel_size=2 "
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=8\n"
    )
    run = import_verl(read_verl_config(script), Given("h100-80gb-sxm"))
    engine = run.plan.role("actor").generation
    assert (engine.dp, engine.tp, engine.attention_dp) == (4, 2, 1)


def test_import_says_what_would_be_faster(run, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True "
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B data.train_batch_size=64 actor_rollout_ref.rollout.n=4 "
        "actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 "
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1\n"
    )
    result = run("import", path, "--device", "h100-80gb-sxm", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["run"]["iteration_s"] > answer["best"]["iteration_s"]
    assert {"key": "actor_rollout_ref.rollout.tensor_model_parallel_size", "now": 2, "change_to": 1} in answer[
        "changes"
    ]
    again = run("simulate", "--plan", tmp_path / "out" / "imported.json", "--json")
    assert json.loads(again.stdout)["iteration_s"] == answer["run"]["iteration_s"]
    assert "was edited" not in again.stderr
    text = run("import", path, "--device", "h100-80gb-sxm", "--out", tmp_path / "out").stdout
    assert "you run at" in text
    assert "keys changed it takes" in text
    assert answer["changed_iteration_s"] == pytest.approx(answer["best"]["iteration_s"], rel=0.01)


def test_defaults_hold_no_dangling_reference():
    config = VerlConfig("x", {})
    assert [key for key in DEFAULTS if not known(config, key)] == []


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"echo 'unclosed", b"- 1\n- {a: b}\n", b"just words"])
def test_a_file_that_is_no_run_is_refused(tmp_path, content):
    for name in ("run.sh", "overrides.yaml"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError):
            read_verl_config(tmp_path / name)


@given(
    st.dictionaries(
        st.sampled_from(sorted(DEFAULTS)),
        st.one_of(st.none(), st.booleans(), st.integers(-2, 70), st.floats(-1, 2), st.sampled_from(["x", "", "grpo"])),
        max_size=4,
    )
)
def test_no_value_of_a_key_is_a_traceback(values):
    """Whatever a configuration holds, the answer is a run or one message."""
    base = {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.model.path": "Qwen/Qwen2.5-0.5B",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
        "data.train_batch_size": 64,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
    }
    try:
        run = import_verl(VerlConfig("x", base | values), Given("h100-80gb-sxm"))
    except InputError as error:
        assert str(error)
    else:
        assert run.plan.num_gpus >= 1
