"""Protects an export against a whole update of verl itself: its own trainer worker, configured by the written script,
makes as many optimizer steps of as many micro-batches as the plan has. Needs the environment of `make check-all`."""

import json
import math
import subprocess
from pathlib import Path

import pytest

from benchmarks.exports.check import write_model
from hybridmap.exports.systems import export_plan
from hybridmap.files.plan import PlanFile
from hybridmap.job.load import job_from_document
from simulator.feasibility import check_plan
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, TokenBudget
from tests.benchmarks.exports.test_check import PEERS, READY

STEP = Path(__file__).parents[3] / "benchmarks" / "exports" / "verl_step_check.py"
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 512,
}
"""What stands in verl's run for the model of the job, whose size no key of the script depends on."""
TOKENS_OF_A_SAMPLE = 72
"""Of the samples that verl_step_check makes."""
CASES = {
    "tokens": (TokenBudget(tokens=256), {}, ()),
    "samples": (2, {"epochs": 2}, ()),
    "offloaded": (TokenBudget(tokens=160), {"minibatches": 4}, ("parameters", "optimizer")),
}


def plan_file(name):
    micro_batch, work, offload = CASES[name]
    sizes = {"prompts": 8, "samples_per_prompt": 4, "prompt_length": 64, "response_length": 64, "minibatches": 2}
    pin = {"actor": {"training": {"micro_batch": micro_batch}}} if isinstance(micro_batch, int) else {}
    job = job_from_document(
        {
            "algorithm": "grpo",
            "models": {"actor": "llama-3.2-1b"},
            "workload": sizes | work,
            "cluster": [{"device": "h100-80gb-sxm", "nodes": 1, "gpus_per_node": 2}],
            "engines": {"training": "fsdp@2.13"},
            "implementation": {"old_log_prob": "trainer"},
            "pin": pin,
        }
    )
    layout = ParallelLayout(dp=2, zero_stage=3, micro_batch=micro_batch, recompute="full")
    entry = RolePlan(
        role="actor",
        pool="A",
        training=layout,
        inference=layout.model_copy(update={"recompute": "none"}),
        generation=GenerationLayout(dp=2, tp=1, max_num_seqs=16, kv_cache_bytes=1 << 30),
        offload=offload,
    )
    pool = Pool(name="A", device="h100-80gb-sxm", first_gpu=0, num_gpus=2, roles=("actor",))
    plan = Plan(algorithm="grpo", placement="{actor}", pools=(pool,), roles=(entry,))
    return PlanFile.model_construct(plan=plan, job=job.document), job


@pytest.mark.parametrize("name", CASES)
def test_the_plans_are_ones_that_run_and_keep_their_batches(name):
    file, job = plan_file(name)
    assert check_plan(file.plan, job.facts()) == []
    assert not [point for point in export_plan(file, name, "verl").points if "micro_batch" in point.place]


@pytest.fixture(scope="module")
def updates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    write_model(folder / "models", "meta-llama/Llama-3.2-1B", TINY)
    scripts = {name: folder / f"{name}.sh" for name in CASES}
    for name, path in scripts.items():
        path.write_text(export_plan(plan_file(name)[0], name, "verl").files["run_verl.sh"])
    command = [str(PEERS / "bin" / "python"), "-W", "ignore", str(STEP), str(folder / "models")]
    done = subprocess.run([*command, *map(str, scripts.values())], capture_output=True, text=True, cwd=folder)
    answer = next((line for line in done.stdout.splitlines() if line.startswith("ANSWER ")), None)
    assert answer is not None, done.stderr[-2000:]
    found = json.loads(answer.removeprefix("ANSWER "))
    return {name: found[str(path)] for name, path in scripts.items()}


@pytest.mark.external
@pytest.mark.skipif(not READY, reason="no environment with verl and OpenRLHF; `make check-all` makes it")
@pytest.mark.parametrize("name", CASES)
def test_verl_makes_the_plans_steps_and_micro_batches(updates, name):
    file, job = plan_file(name)
    found, work = updates[name], job.facts().workload
    layout = file.plan.role("actor").training
    per_rank = work.minibatch_samples // layout.dp
    tokens = per_rank * TOKENS_OF_A_SAMPLE
    each = math.ceil(tokens / layout.token_budget) if layout.token_budget else per_rank / layout.micro_samples
    assert found["world"] == 2 and found["samples"] == work.num_samples // layout.dp
    assert found["steps"] == work.minibatches * work.epochs
    assert found["micro_batches"] == found["steps"] * each
    assert found["scored"] and all(norm > 0 for norm in found["grad_norm"]) and found["moved"] > 0
