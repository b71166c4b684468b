"""Protects ``hybridmap import``: a run is held against plans of its own schedule."""

import json
from pathlib import Path

import pytest
import yaml

ASYNC = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B data.train_batch_size=64 actor_rollout_ref.rollout.n=4 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 "
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1 "
    "trainer.nnodes=1 trainer.n_gpus_per_node=8 "
    "actor_rollout_ref.rollout.nnodes=1 actor_rollout_ref.rollout.n_gpus_per_node=8\n"
)
"""A run whose engines have GPUs of their own: verl trains on samples of earlier iterations meanwhile."""


def test_an_asynchronous_run_is_held_against_asynchronous_plans(run, tmp_path):
    (tmp_path / "run.sh").write_text(ASYNC)
    result = run("import", tmp_path / "run.sh", "--device", "H100", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["run"]["plan"]["schedule"] == answer["best"]["plan"]["schedule"] == "async"
    assert answer["best"]["plan"]["steps_in_flight"] == answer["run"]["plan"]["steps_in_flight"]
    assert answer["best"]["iteration_s"] < answer["run"]["iteration_s"]
    job = yaml.safe_load((tmp_path / "out" / "job.yaml").read_text())
    assert job["schedule"]["kind"] == answer["job"]["schedule"]["kind"] == "async"
    again = run("plan", tmp_path / "out" / "job.yaml", "--out", tmp_path / "again", "--json")
    assert json.loads(again.stdout)["plan"]["schedule"] == "async"


def test_lengths_come_from_a_log(run, tmp_path):
    logs = Path(__file__).parents[3] / "examples" / "logs"
    words = (logs / "verl-qwen2-7b-8xh100.sh", "--device", "h100-80gb-sxm", "--out", tmp_path, "--time-limit", "600")
    done = run("import", *words, "--log", logs / "verl-qwen2-7b-8xh100.jsonl")
    assert done.exit_code == 0, done.stderr
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert job["workload"]["response_length"]["mean"] == 227
    assert job["workload"]["prompt_tokens"] == pytest.approx(101.5, abs=0.1)
    nothing = tmp_path / "bare.jsonl"
    nothing.write_text('{"step": 1, "data": {"timing_s/gen": 3.0}}\n')
    refused = run("import", *words, "--log", nothing)
    assert refused.exit_code == 2
    assert "says nothing of response lengths" in refused.stderr


DENSE = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo model_engine=megatron trainer.n_gpus_per_node=8 "
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B data.train_batch_size=1024 actor_rollout_ref.rollout.n=5 "
    "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 "
    "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 data.max_response_length=2048 "
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True actor_rollout_ref.rollout.tensor_model_parallel_size=2 "
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.actor.ppo_max_token_len_per_gpu="
)


@pytest.mark.parametrize(
    ("tokens", "fits", "priced"), [(12288, True, True), (24576, False, True), (49152, False, False)]
)
def test_a_run_that_is_within_the_error_of_the_memory_count_is_priced_and_told(run, tmp_path, tokens, fits, priced):
    """Published scripts stand at the edge; who imports one knows whether it runs."""
    (tmp_path / "run.sh").write_text(f"{DENSE}{tokens}\n")
    words = ("import", tmp_path / "run.sh", "--device", "H100", "--out", tmp_path / "out", "--time-limit", "10")
    answer = json.loads(run(*words, "--json").stdout)["run"]
    assert (answer["fits"], answer["iteration_s"] is not None, not answer["why_not"]) == (fits, priced, fits)
    assert (tmp_path / "out" / "imported.json").exists() is fits
    text = run(*words).stdout
    assert ("your run, which may not fit" in text) is (priced and not fits)
    assert (", if it fits" in " ".join(text.split())) is (priced and not fits)
    assert ("nine times in ten" in text) is not fits
