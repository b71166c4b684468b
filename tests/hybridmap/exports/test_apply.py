"""Protects what an import leads to: steps in order, each priced again, and a changed file that says so."""

import re
from dataclasses import replace

import pytest
import yaml

from hybridmap.exports.advice import advise, in_order, joined, worthwhile
from hybridmap.exports.apply import changed_text
from hybridmap.exports.imported import Given
from hybridmap.exports.reader import READERS
from mapper.search.find_plan import find_plan
from profiles.errors import InputError
from simulator.feasibility import check_plan

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
VERL = f"""nodes=1
if true; then
  python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B \\
    data.train_batch_size=64 {ROLLOUT}.n=4 {ACTOR}.ppo_mini_batch_size=64 {ACTOR}.ppo_micro_batch_size_per_gpu=1 \\
    {ROLLOUT}.log_prob_micro_batch_size_per_gpu=1 +{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes=1000000000 \\
    trainer.nnodes=$nodes "$@" 2>&1 | tee "log of the run"  # Grüße
fi
"""
SLIME = """ARGS=(--hf-checkpoint /models/Qwen3-4B --rollout-batch-size 32 --n-samples-per-prompt 8
  --rollout-max-response-len 1024 --rollout-max-prompt-len 512 --global-batch-size 256
  --tensor-model-parallel-size 8 --sequence-parallel --rollout-num-gpus-per-engine 8 --sglang-mem-fraction-static 0.5)
ray job submit --address="http://127.0.0.1:8265" -- python3 train.py --actor-num-gpus-per-node 8 --colocate ${ARGS[@]}
"""
OPENRLHF = """python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen2.5-1.5B \\
  --algo.advantage.estimator group_norm --algo.kl.init_coef 0 --reward.remote_url reward.py --train.colocate_all \\
  --rollout.batch_size 64 --rollout.n_samples_per_prompt 4 --train.batch_size 256 --data.max_len 1024 \\
  --rollout.max_new_tokens 512 --vllm.num_engines 2 --vllm.tensor_parallel_size 4 --vllm.gpu_memory_utilization 0.4
"""
NEMO_RL = """defaults: grpo_math_1B.yaml
policy: {model_name: Qwen/Qwen2.5-7B, generation: {vllm_cfg: {tensor_parallel_size: 4}}}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""
RUNS = {"verl": VERL, "slime": SLIME, "openrlhf": OPENRLHF, "nemo-rl": NEMO_RL}
GIVEN = Given("h100-80gb-sxm", mean_response_length=200)


def search(job):
    return find_plan(replace(job.request(), runners_up=False))


@pytest.mark.parametrize("system", RUNS)
def test_a_changed_file_reads_as_the_advice_says(system, tmp_path):
    path = tmp_path / ("recipe.yaml" if system == "nemo-rl" else "run.sh")
    path.write_text(RUNS[system])
    reader = READERS[system]
    config = reader.read(path, {})
    imported = reader.imported(config, GIVEN)
    assert check_plan(imported.plan, imported.job.facts()) == []
    advice = advise(reader, imported, config, search)
    assert advice.reason == ""
    assert advice.steps
    changed = tmp_path / f"changed{path.suffix}"
    changed.write_text(changed_text(path, path.read_text(), system, advice.changes, {}))
    again = reader.imported(reader.read(changed, {}), GIVEN)
    assert again.source.iteration_s() == pytest.approx(advice.iteration_s, rel=1e-6)
    assert advice.steps[-1].after_s == pytest.approx(advice.iteration_s, rel=1e-6)
    assert {change for step in advice.steps for change in step.changes} == set(advice.changes)
    assert imported.source.iteration_s() > advice.iteration_s


def test_overrides_stand_behind_the_command_and_before_its_arguments(tmp_path):
    path = tmp_path / "run.sh"
    changes = ((f"{ROLLOUT}.tensor_model_parallel_size", 2, 1), (f"+{ROLLOUT}.engine_kwargs.vllm.x", None, 5))
    text = changed_text(path, VERL, "verl", changes, {})
    assert f"trainer.nnodes=$nodes \\\n    {ROLLOUT}.tensor_model_parallel_size=1 \\\n    " in text
    assert f'++{ROLLOUT}.engine_kwargs.vllm.x=5 "$@" 2>&1 | tee "log of the run"  # Grüße' in text


def test_what_cannot_be_written_is_said(tmp_path):
    path = tmp_path / "run.sh"
    built = 'CMD="python3 -m verl.trainer.main_ppo data.train_batch_size=8"\neval $CMD\n'
    with pytest.raises(InputError, match="put together from text"):
        changed_text(path, built, "verl", (("a", 1, 2),), {})
    text = changed_text(path, SLIME, "slime", (("sequence-parallel", True, None), ("x-y", 1, 2)), {})
    assert "--sequence-parallel" not in text
    assert text.endswith("${ARGS[@]} \\\n    --x-y 2\n")
    with pytest.raises(InputError, match="only leaving --balance-data out turns it off"):
        changed_text(path, SLIME, "slime", (("balance-data", True, None),), {})


def test_the_largest_gain_comes_first_and_what_fits_only_together_is_one_step():
    """By hand: offload saves 5, layouts 3; alone the micro-batches do not fit, nor with either of the others."""
    changes = (("x.tensor_parallel_size", 1, 2), ("x.param_offload", False, True), ("x.micro_batch_size", 1, 2))

    def time_of(some):
        keys = {key for key, _, _ in some}
        if "x.micro_batch_size" in keys:
            return 90.0 if len(keys) == 3 else None
        return 100.0 - 5.0 * ("x.param_offload" in keys) - 3.0 * ("x.tensor_parallel_size" in keys)

    steps = in_order(changes, time_of)
    assert [(step.name, step.alone_s, step.after_s) for step in steps] == [
        ("offload", 95.0, 95.0),
        ("the trainer's layout", 97.0, 92.0),
        ("micro-batches", None, 90.0),
    ]


def test_a_step_without_a_gain_is_left_out_unless_others_need_it():
    """By hand: layouts save 10; micro-batches nothing; offload nothing by itself, but without it layouts do not fit."""
    layout, offload, batch = ("x.tensor_parallel_size", 1, 2), ("x.param_offload", False, True), ("x.micro_batch", 1, 2)

    def time_of(some):
        return 100.0 - 10.0 * (layout in some) - 0.1 * (batch in some)

    def time_if_offloaded(some):
        return None if layout in some and offload not in some else time_of(some)

    every = (layout, offload, batch)
    assert worthwhile(every, in_order(every, time_of), 100.0, time_of) == ((layout,), 90.0)
    steps = in_order(every, time_if_offloaded)
    kept, kept_s = worthwhile(every, steps, 100.0, time_if_offloaded)  # the batches go, offload stays
    assert (kept, kept_s) == ((offload, layout), 90.0)
    (step,) = joined(in_order(kept, time_if_offloaded), 100.0, time_if_offloaded)
    assert (step.name, set(step.changes), step.alone_s, step.after_s) == (
        "offload, the trainer's layout",
        {layout, offload},
        90.0,
        90.0,
    )


def test_every_step_gains_something_in_sequence():
    """By hand: a layout costs 5 and lets recomputation go, which saves 20; engines save 10 by themselves."""
    layout, batch = ("x.tensor_parallel_size", 1, 2), ("x.rollout.tensor_parallel_size", 1, 2)
    again = ("x.recompute", True, False)

    def time_of(some):
        if again in some and layout not in some:
            return None
        return 100.0 + 5.0 * (layout in some) - 10.0 * (batch in some) - 20.0 * (again in some)

    steps = in_order((layout, batch, again), time_of)
    assert [step.after_s for step in steps] == [90.0, 95.0, 75.0]
    first, second = joined(steps, 100.0, time_of)
    assert first == steps[0]
    assert (second.alone_s, second.after_s) == (85.0, 75.0)
    assert set(second.changes) == {layout, again}


def test_the_command_writes_the_changed_script_beside_the_old_one(run, tmp_path):
    (tmp_path / "run.sh").write_text(VERL)
    words = ("import", tmp_path / "run.sh", "--device", "h100-80gb-sxm", "--out", tmp_path / "out", "--apply")
    done = run(*words)
    assert done.exit_code == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("your run takes about ")
    assert re.fullmatch(r"with \d+ keys? changed about [\d.]+ s \([\d.]+ % less\), under this model; .*", second)
    assert "by reading the changed run again" in done.stdout
    beside = tmp_path / "run.hybridmap.sh"
    assert str(beside) in done.stdout
    assert (tmp_path / "run.sh").read_text() == VERL
    again = run("import", beside, "--device", "h100-80gb-sxm", "--out", tmp_path / "out")
    assert again.stdout.splitlines()[1].startswith("leave it: it is within 2 % of the best")
    assert "what you have is within 2 % of the best" in again.stdout


def test_a_recipe_stands_on_those_beside_it(tmp_path):
    (tmp_path / "base.yaml").write_text(
        yaml.safe_dump({"defaults": "grpo_math_1B.yaml", "grpo": {"num_prompts_per_step": 64}})
    )
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"defaults": "base.yaml", "cluster": {"gpus_per_node": 8}}))
    (tmp_path / "run.sh").write_text(
        "uv run examples/run_grpo.py --config mine.yaml ++grpo.num_generations_per_prompt=4\n"
    )
    found = READERS["nemo-rl"].imported(READERS["nemo-rl"].read(tmp_path / "run.sh", {}), GIVEN)
    work = found.job.facts().workload
    assert (work.prompts, work.samples_per_prompt, found.plan.num_gpus) == (64, 4, 8)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"defaults": "elsewhere.yaml"}))
    with pytest.raises(InputError, match=r"stands on elsewhere\.yaml, which is not beside it"):
        READERS["nemo-rl"].read(tmp_path / "run.sh", {})


@pytest.mark.parametrize(
    ("system", "text", "message"),
    [
        (
            "slime",
            "python3 train.py --hf-checkpoint /m/Qwen3-4B --advantage-estimator ppo",
            "advantage-estimator 'ppo'",
        ),
        ("slime", "python3 train.py --hf-checkpoint /m/Qwen3-4B --actor-num-nodes $N", "known only where the script"),
        ("openrlhf", "python3 -m openrlhf.cli.train_sft --x 1", "starts no openrlhf.cli.train_ppo_ray"),
        ("nemo-rl", "uv run examples/run_grpo.py", "without --config"),
    ],
)
def test_what_is_not_read_is_named(system, text, message, tmp_path):
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(InputError, match=message):
        READERS[system].imported(READERS[system].read(tmp_path / "run.sh", {}), GIVEN)


def test_a_run_of_openrlhf_is_read_as_deepspeed_shards_it(tmp_path):
    """ZeRO 2, its default, is itself; states wait in host memory where its flags have them do so."""
    path, reader = tmp_path / "run.sh", READERS["openrlhf"]

    def read(more):
        path.write_text(f"{OPENRLHF.rstrip()} {more}\n")
        return reader.imported(reader.read(path, {}), GIVEN)

    plain = read("--ds.enable_sleep")
    assert plain.job.facts().training.name.startswith("deepspeed@")
    assert plain.plan.role("actor").training.zero_stage == 2
    assert plain.plan.role("actor").offload == ("optimizer",)
    assert any("--ds.overlap_comm" in note for note in plain.notes)
    with_reference = OPENRLHF.replace("kl.init_coef 0 ", "kl.init_coef 0.01 ")
    for stage, kept in ((2, ()), (3, ("parameters",))):
        path.write_text(f"{with_reference.rstrip()} --ref.offload --ds.zero_stage {stage} --ds.overlap_comm\n")
        again = reader.imported(reader.read(path, {}), GIVEN)
        assert again.plan.role("reference").offload == kept
        assert not any("--ds.overlap_comm" in note for note in again.notes)
