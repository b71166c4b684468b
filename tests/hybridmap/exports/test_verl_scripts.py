"""Protects the import of launch scripts as people write them: each is understood as bash would run it, or refused by
name; what only the machine that runs it knows is never a silent default."""

from dataclasses import replace
from pathlib import Path

import pytest

from hybridmap.exports.imported import Given
from hybridmap.exports.verl.import_run import import_verl
from hybridmap.exports.verl.read import read_verl_config
from profiles.errors import FileFormatError, InputError
from simulator.feasibility import check_plan
from simulator.pool_memory import pool_memory

ROOT = Path(__file__).parents[3]
CORE = (
    "algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8"
)
"""What every run says; scripts below add to it."""
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
GIVEN = Given("h100-80gb-sxm")

LOWER_CASE = f"""
set -xeuo pipefail
nnodes=4
gen_tp=2
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 6))
train_prompt_bsz=512
python3 -m verl.trainer.main_ppo {CORE} \\
    data.max_prompt_length=${{max_prompt_length}} data.max_response_length=$max_response_length \\
    data.train_batch_size=${{train_prompt_bsz}} data.train_files=$HOME/data/train.parquet \\
    {ROLLOUT}.tensor_model_parallel_size=${{gen_tp}} trainer.nnodes="${{nnodes}}" $@
"""
ARRAYS = f"""
rollout_tp=${{ROLLOUT_TP:-4}}
DATA=(
    data.train_files="['$HOME/a.parquet', '$HOME/b.parquet']"
    data.train_batch_size=${{TRAIN_BATCH_SIZE:-256}}   # prompts
)
ROLLOUT=(
    {ROLLOUT}.tensor_model_parallel_size=${{rollout_tp}} \\
    {ROLLOUT}.n=8
)
EXTRA=()
python3 -m verl.trainer.main_ppo {CORE} "${{DATA[@]}}" "${{ROLLOUT[@]}}" "${{EXTRA[@]}}" "$@" 2>&1 | tee run.log
"""
RAY_JOB = f"""
RAY_ADDRESS=${{RAY_ADDRESS:-"http://localhost:8265"}}
NNODES=${{NNODES:-16}}
offload=True
ray job submit --no-wait --runtime-env="${{RUNTIME_ENV}}" --working-dir "${{PWD}}" \\
    -- python3 -m recipe.dapo.main_dapo {CORE} trainer.nnodes="${{NNODES}}" \\
    {ACTOR}.fsdp_config.param_offload=${{offload}}
"""
DEVICES = f"""
DEVICE=${{DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}}
case "${{DEVICE}}" in
    gpu) tp=4 ;;
    npu) tp=8; export HCCL_CONNECT_TIMEOUT=1500 ;;
    *) echo "unsupported" >&2; exit 1 ;;
esac
python3 -m verl.trainer.main_ppo {CORE} {ROLLOUT}.tensor_model_parallel_size=$tp
"""
FUNCTIONS = f"""
launch() {{
    local nodes=$1; shift
    PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo {CORE} trainer.nnodes=$nodes "$@"
}}
launch 2 {ROLLOUT}.n=16
"""
BUILT_COMMAND = f"""
CMD="python3 -m verl.trainer.main_ppo"
CMD+=" {CORE}"
if [ "${{USE_BIG:-0}}" = "1" ]; then CMD+=" trainer.nnodes=8"; else CMD="$CMD trainer.nnodes=2"; fi
eval $CMD
"""
NESTED = f"""
#SBATCH --nodes=4
srun --overlap --ntasks=1 bash -c "ray start --head && python3 -m verl.trainer.main_ppo {CORE} trainer.nnodes=4"
"""
MEGATRON = f"""
train_tp=4; train_pp=2
COMMON="{CORE}"
python3 -m verl.trainer.main_ppo --config-path=config --config-name='ppo_megatron_trainer.yaml' $COMMON \\
    {ACTOR}.megatron.tensor_model_parallel_size=$train_tp {ACTOR}.megatron.pipeline_model_parallel_size=$train_pp
"""
DYNAMIC = f"""
max_tokens=$(( (1024 + 3072) * 2 ))
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
    data.max_prompt_length=1024 data.max_response_length=3072 {ACTOR}.use_dynamic_bsz=True \\
    {ACTOR}.ppo_max_token_len_per_gpu=$max_tokens {ROLLOUT}.log_prob_max_token_len_per_gpu=$((max_tokens * 2))
"""
ULYSSES = f"""
sp_size=4
python3 -m verl.trainer.main_ppo {CORE} {ACTOR}.ulysses_sequence_parallel_size=${{sp_size}} \\
    {ACTOR}.use_kl_loss=True actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8
"""
MODEL_PATHS = f"""
RAY_DATA_HOME=${{RAY_DATA_HOME:-"${{HOME}}/verl"}}
MODEL_PATH=${{MODEL_PATH:-"${{RAY_DATA_HOME}}/models/Qwen2.5-7B"}}
python3 main_ppo.py {CORE} actor_rollout_ref.model.path="${{MODEL_PATH}}" trainer.default_local_dir=$(pwd)/x
"""
HYDRA = f"""
python3 -m verl.trainer.main_ppo {CORE} data.train_batch_size=512 \\
    {ACTOR}.ppo_mini_batch_size='${{data.train_batch_size}}' {ROLLOUT}.n='${{oc.select:trainer.no_such,6}}' \\
    ++{ROLLOUT}.engine_kwargs.vllm='{{kv_cache_memory_bytes:10000000000}}'
"""
HEREDOC_AND_LOOP = f"""
for step in 1 2; do echo "$step"; done
cat > /dev/null <<EOF
trainer.nnodes=99
EOF
gpus=8; world=$((gpus * 2))
python3 -m verl.trainer.main_ppo {CORE} trainer.nnodes=$((world / gpus)) trainer.n_gpus_per_node=$gpus
"""

UNDERSTOOD = {
    "lower case and arithmetic": (
        LOWER_CASE,
        {
            "trainer.nnodes": 4,
            "data.max_prompt_length": 2048,
            "data.max_response_length": 6144,
            "data.train_batch_size": 512,
            f"{ROLLOUT}.tensor_model_parallel_size": 2,
        },
    ),
    "arrays and a pipe": (
        ARRAYS,
        {"data.train_batch_size": 256, f"{ROLLOUT}.tensor_model_parallel_size": 4, f"{ROLLOUT}.n": 8},
    ),
    "ray job submit": (RAY_JOB, {"trainer.nnodes": 16, f"{ACTOR}.fsdp_config.param_offload": True}),
    "a probe for an NPU": (DEVICES, {f"{ROLLOUT}.tensor_model_parallel_size": 4}),
    "a function with arguments": (FUNCTIONS, {"trainer.nnodes": 2, f"{ROLLOUT}.n": 16}),
    "a command in a variable": (BUILT_COMMAND, {"trainer.nnodes": 2}),
    "a script in a word": (NESTED, {"trainer.nnodes": 4}),
    "Megatron's configuration": (
        MEGATRON,
        {
            "model_engine": "megatron",
            f"{ACTOR}.megatron.tensor_model_parallel_size": 4,
            f"{ACTOR}.megatron.pipeline_model_parallel_size": 2,
        },
    ),
    "Hydra's own interpolation": (
        HYDRA,
        {
            f"{ACTOR}.ppo_mini_batch_size": 512,
            f"{ROLLOUT}.n": 6,
            f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes": 10_000_000_000,
        },
    ),
    "a heredoc and a loop": (HEREDOC_AND_LOOP, {"trainer.nnodes": 2, "trainer.n_gpus_per_node": 8}),
}


def config_of(tmp_path, text, **environment):
    path = tmp_path / "run.sh"
    path.write_text(text)
    return read_verl_config(path, environment)


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_a_script_is_read_as_bash_reads_it(name, tmp_path):
    text, expected = UNDERSTOOD[name]
    config = config_of(tmp_path, text)
    assert {key: config.get(key) for key in expected} == expected
    assert import_verl(config, GIVEN).plan.num_gpus == 8 * config.get("trainer.nnodes")


def test_the_environment_of_a_script_can_be_given(tmp_path):
    config = config_of(tmp_path, ARRAYS, ROLLOUT_TP="2", TRAIN_BATCH_SIZE="1024")
    assert (config.get("data.train_batch_size"), config.get(f"{ROLLOUT}.tensor_model_parallel_size")) == (1024, 2)
    assert config_of(tmp_path, BUILT_COMMAND, USE_BIG="1").get("trainer.nnodes") == 8
    assert config_of(tmp_path, DEVICES, DEVICE="npu").get(f"{ROLLOUT}.tensor_model_parallel_size") == 8


def test_a_model_is_known_by_its_folder_wherever_that_lies(tmp_path):
    run = import_verl(config_of(tmp_path, MODEL_PATHS), GIVEN)
    assert run.job.document["models"]["actor"]["shape"] == "qwen2.5-7b"


def test_a_model_of_ones_own_is_given_by_its_config(tmp_path):
    text = MODEL_PATHS.replace("models/Qwen2.5-7B", "models/ours-v3")
    with pytest.raises(InputError, match=r"unknown model 'ours-v3'.*--model-config with its config\.json"):
        import_verl(config_of(tmp_path, text), GIVEN)
    shape = str(ROOT / "profiles" / "models" / "configs" / "qwen2.5-1.5b.json")
    critic = text.rstrip() + ' algorithm.adv_estimator=gae critic.model.path="${MODEL_PATH}"\n'
    run = import_verl(config_of(tmp_path, critic), replace(GIVEN, models={"actor": shape}))
    assert [run.job.facts().roles[role].shape.num_layers for role in ("actor", "critic")] == [28, 28]


@pytest.mark.parametrize(("words", "trained"), [("", 100.0), ("=True", 100.0), ("=False", 2048.0)])
def test_prompts_are_trained_without_padding_unless_verl_keeps_it(tmp_path, words, trained):
    key = f"actor_rollout_ref.model.use_remove_padding{words}" if words else ""
    text = MODEL_PATHS.rstrip() + f" data.max_prompt_length=2048 {key}\n"
    run = import_verl(config_of(tmp_path, text), replace(GIVEN, prompt_tokens=100.0))
    assert run.job.facts().workload.trained_prompt_tokens == trained


def test_responses_at_their_limit_are_an_assumption_that_is_said(tmp_path):
    config = config_of(tmp_path, MODEL_PATHS)
    assert any("every response is taken to reach the limit" in note for note in import_verl(config, GIVEN).notes)
    known = import_verl(config, replace(GIVEN, mean_response_length=100))
    assert not any("every response" in note for note in known.notes)


def test_dynamic_batches_become_budgets_of_tokens(tmp_path):
    run = import_verl(config_of(tmp_path, DYNAMIC), GIVEN)
    assert run.job.document["implementation"]["packed_tokens"] is None
    assert run.plan.role("actor").training.token_budget == 8192
    assert run.plan.role("actor").inference.token_budget == 2 * 8192


def test_the_deprecated_key_of_ulysses_is_honoured_where_verl_honours_it(tmp_path):
    run = import_verl(config_of(tmp_path, ULYSSES), GIVEN)
    for role, stage in (("actor", "training"), ("actor", "inference"), ("reference", "inference")):
        layout = getattr(run.plan.role(role), stage)
        assert (layout.cp, layout.dp) == (4, 2)
    assert any("deprecated and still wins" in note for note in run.notes)


def test_megatron_has_one_layout_a_process_the_references(tmp_path):
    """verl's engine keeps the parallel state that it finds, and builds the reference first."""
    text = f"""python3 -m verl.trainer.main_ppo model_engine=megatron {CORE} {ACTOR}.use_kl_loss=True \\
        {ACTOR}.megatron.tensor_model_parallel_size=4 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \\
        actor_rollout_ref.ref.megatron.tensor_model_parallel_size=1 \\
        actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=2"""
    run = import_verl(config_of(tmp_path, text), GIVEN)
    layout = run.plan.role("actor").training
    assert (layout.tp, layout.pp, layout.dp) == (1, 2, 4)
    assert any("actor: verl keeps one Megatron layout" in note for note in run.notes)
    alone = text.replace(f"{ACTOR}.use_kl_loss=True", "")
    layout = import_verl(config_of(tmp_path, alone), GIVEN).plan.role("actor").training
    assert (layout.tp, layout.pp, layout.dp) == (4, 1, 2)


START = f"python3 -m verl.trainer.main_ppo {CORE}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{START} trainer.nnodes=$SLURM_NNODES", r"trainer.nnodes=\$\{SLURM_NNODES\}.*--env SLURM_NNODES=VALUE"),
        (f"n=$(nproc)\n{START} trainer.n_gpus_per_node=$n", r"\$\(nproc\) is known only where.*write the value"),
        (f"{START} data.train_batch_size=$((BSZ * 4))", "--env BSZ=VALUE"),
        (f"{START} trainer.nnodes=$1", r"\$1 is known only where the script runs"),
        (f"source env.sh\n{START} trainer.nnodes=$NODES", "it also reads env.sh, which is not beside it"),
        (f"if [ $BIG = 1 ]; then tp=8; else tp=2; fi\n{START} {ROLLOUT}.tensor_model_parallel_size=$tp", "--env BIG="),
        (f'E=()\nif [ $BIG = 1 ]; then E+=(trainer.nnodes=8); fi\n{START} "${{E[@]}}"', "--env BIG=VALUE"),
        (f"{START} actor_rollout_ref.model.path=$HOME/$MODEL", "--env HOME=VALUE --env MODEL=VALUE"),
        (f"{START} trainer.nnodes='${{oc.env:NODES}}'", "this interpolation is not resolved here"),
        (f"{START} trainer.nnodes='${{trainer.nnodes}}'", "points to itself"),
        (f"{START}\n{START} trainer.nnodes=2", "2 commands start verl .lines 1, 2."),
        (f"if [ $A = 1 ]; then {START}; else {START} trainer.nnodes=2; fi", "depends on A: give --env A=VALUE"),
        ("python3 -m verl.trainer.sft_trainer data.train_batch_size=8", "starts verl.trainer.sft_trainer"),
        (f"python3 -m verl.experimental.teacher.main {CORE}", "starts verl.experimental.teacher.main, whose"),
        (f"{START} --config-name=fully_async_ppo_trainer", "is of verl.experimental.fully_async_policy"),
        (f"{START} --config-name=my_config", "configuration of your own"),
        ("python3 train.py --lr 1", "starts nothing with a key of verl"),
        ("uv run examples/run_grpo.py --config r.yaml", "of another system is read with --from nemo-rl, openrlhf or"),
    ],
)
def test_what_stays_unresolved_is_an_error_that_names_it(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        import_verl(config_of(tmp_path, text), GIVEN)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("model_engine=mindspeed", "model_engine=mindspeed is not read"),
        ("actor_rollout_ref.actor.strategy=veomni", "strategy=veomni is not read"),
        ("trainer.device=npu", "trainer.device=npu is not read"),
        ("trainer.v1.trainer_mode=colocate_async", "trainer_mode=colocate_async is not read"),
        ("distillation.enabled=True", "distillation.enabled=True is not read"),
        ("algorithm.adv_estimator=grp", "did you mean grpo"),
        (f"{ACTOR}.use_dynamic_bsz=True {ROLLOUT}.log_prob_use_dynamic_bsz=False", "differ, which verl refuses"),
        (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=null", "verl refuses that too"),
    ],
)
def test_runs_of_another_kind_are_refused_by_name(tmp_path, words, message):
    with pytest.raises(InputError, match=message):
        import_verl(config_of(tmp_path, f"{START} {words}"), GIVEN)


def test_an_unset_variable_of_whole_words_is_read_as_none_and_noted(tmp_path):
    config = config_of(tmp_path, f"{START} $EXTRA_ARGS")
    assert config.get("trainer.nnodes") == 1
    assert any("EXTRA_ARGS is not set in the script" in note for note in import_verl(config, GIVEN).notes)
    filled = config_of(tmp_path, f"{START} $EXTRA", EXTRA="trainer.nnodes=3 trainer.n_gpus_per_node=4")
    assert (filled.get("trainer.nnodes"), filled.get("trainer.n_gpus_per_node")) == (3, 4)


def test_what_has_no_price_is_noted(tmp_path):
    words = (
        f"algorithm.filter_groups.enable=True {ROLLOUT}.multi_turn.enable=True {ROLLOUT}.name=trtllm "
        f"{ACTOR}.fsdp_config.fsdp_size=4 {ACTOR}.fsdp_config.offload_policy=True "
        f"{ACTOR}.fsdp_config.reshard_after_forward=False "
        "critic.model.fsdp_config.param_offload=True reward_model.enable=True"
    )
    run = import_verl(config_of(tmp_path, f"{START} {words}"), GIVEN)
    assert not [v for v in check_plan(run.plan, run.job.facts()) if v.rule != "memory"]
    assert run.plan.role("actor").offload == ("parameters", "optimizer")  # by offload_policy
    notes = "\n".join(run.notes)
    parts = (
        "filter_groups",
        "multi_turn",
        "trtllm",
        "fsdp_size=4",
        "offload_policy",
        "reshard_after",
        "no such key",
        "old section",
    )
    assert [part for part in parts if part not in notes] == []


def test_a_script_that_doubles_its_variables_is_one_error(tmp_path):
    text = "A=aaaaaaaaaaaaaaaa\n" + "A=$A$A\n" * 26 + "python3 -m verl.trainer.main_ppo data.train_batch_size=8"
    with pytest.raises(FileFormatError, match="expand to more than 1,048,576 characters"):
        config_of(tmp_path, text)


def test_the_command_takes_the_environment_and_says_what_is_missing(run, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(f"{START} trainer.nnodes=$NODES {ROLLOUT}.n=2 data.train_batch_size=256\n")
    words = ("import", path, "--device", "h100-80gb-sxm", "--out", tmp_path / "out")
    failed = run(*words)
    assert failed.exit_code == 2
    assert "--env NODES=VALUE" in failed.stderr
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    assert run(*words, "--env", "NODES").exit_code == 2
    done = run(*words, "--env", "NODES=1", "--json")
    assert done.exit_code == 0, done.output


WIDE_MICRO_BATCHES = f"""
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \\
    data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=1024 \\
    {ACTOR}.ppo_mini_batch_size=256 {ACTOR}.ppo_micro_batch_size_per_gpu=40 {ACTOR}.use_kl_loss=True \\
    actor_rollout_ref.model.enable_gradient_checkpointing=True \\
    {ROLLOUT}.log_prob_micro_batch_size_per_gpu=40 {ROLLOUT}.tensor_model_parallel_size=2 {ROLLOUT}.n=5 \\
    {ROLLOUT}.gpu_memory_utilization=0.6 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=40 \\
    actor_rollout_ref.ref.fsdp_config.param_offload=True
"""
"""Forty samples at once of a vocabulary of 152 thousand, which people run on eight H100."""


@pytest.mark.parametrize("mean", [None, 300])
def test_micro_batches_of_forty_samples_fit_as_they_do_in_verl(tmp_path, mean):
    """At the limits of all lengths it uses the headroom up; at lengths as they are it leaves a quarter free."""
    (tmp_path / "run.sh").write_text(WIDE_MICRO_BATCHES)
    given = Given("h100-80gb-sxm", mean_response_length=mean, models={"actor": "qwen2-7b", "reference": "qwen2-7b"})
    found = import_verl(read_verl_config(tmp_path / "run.sh"), given)
    facts = found.job.facts()
    assert facts.implementation.loss_head == "in-place"
    assert check_plan(found.plan, facts) == []
    peak = pool_memory(found.plan, found.plan.pools[0], facts)
    assert (peak.used_bytes > facts.memory_usable_bytes) is (mean is None)
    assert mean is None or peak.used_bytes < 0.8 * peak.capacity_bytes
