"""Protects the layouts of an export against verl itself: its own engines, built from the written settings on eight CPU
ranks, have the degrees and the groups of ranks that the plan has. Needs the environment of `make check-all`."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.exports.check import write_models
from hybridmap.exports.systems import export_plan
from hybridmap.files.plan import PlanFile
from hybridmap.job.load import job_from_document
from simulator.feasibility import check_plan
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, TokenBudget
from tests.benchmarks.exports.test_check import PEERS, READY

ENGINES = Path(__file__).parents[3] / "benchmarks" / "exports" / "verl_engines_check.py"
MEGATRON = {
    "tensor": ("llama-3.2-1b", ("actor", "reference"), {"tp": 4}),
    "pipeline": ("llama-3.2-1b", ("actor", "reference"), {"tp": 2, "pp": 2}),
    "interleaved": ("llama-3.2-1b", ("actor",), {"pp": 2, "vpp": 2}),
    "context": ("llama-3.2-1b", ("actor", "reference"), {"tp": 2, "cp": 2}),
    "experts": ("qwen1.5-moe-a2.7b", ("actor", "reference"), {"tp": 2, "ep": 4}),
    "critic": ("llama-3.2-1b", ("actor", "critic"), {"tp": 2, "pp": 2, "cp": 2}),
}
FSDP = {
    "sharded": ("llama-3.2-1b", ("actor",), {}),
    "with reference": ("llama-3.2-1b", ("actor", "reference"), {}),
    "ulysses 2": ("llama-3.2-1b", ("actor", "reference"), {"cp": 2}),
    "ulysses 4": ("llama-3.2-1b", ("actor",), {"cp": 4}),
    "ulysses 8": ("llama-3.2-1b", ("actor", "reference"), {"cp": 8}),
    "with critic": ("llama-3.2-1b", ("actor", "critic", "reference"), {"cp": 2}),
}
CASES = {f"megatron, {name}": case for name, case in MEGATRON.items()} | {
    f"fsdp, {name}": case for name, case in FSDP.items()
}


def plan_file(name):
    """A plan file in which all of a process have these degrees, on eight GPUs."""
    model, roles, degrees = CASES[name]
    fsdp = name.startswith("fsdp")
    job = job_from_document(
        {
            "algorithm": "ppo" if "critic" in roles else "grpo",
            "models": dict.fromkeys(roles, model),
            "workload": {
                "prompts": 64,
                "samples_per_prompt": 4,
                "prompt_length": 256,
                "response_length": 256,
                "minibatches": 2,
            },
            "cluster": [{"device": "h100-80gb-sxm", "nodes": 1}],
            "engines": {"training": "fsdp@2.13" if fsdp else "megatron-core@0.16"},
            "implementation": {"old_log_prob": "trainer"},
        }
    )
    ranks = degrees.get("tp", 1) * degrees.get("pp", 1) * degrees.get("cp", 1)
    layout = ParallelLayout(
        **degrees,
        dp=8 // ranks,
        zero_stage=3 if fsdp else 1,
        micro_batch=4 if "vpp" in degrees else TokenBudget(tokens=4096),
        recompute="full",
    )
    score = layout.model_copy(update={"recompute": "none"})
    engine = GenerationLayout(dp=4, tp=2, max_num_seqs=64, kv_cache_bytes=1 << 33)
    entries = [
        RolePlan(
            role=role,
            pool="A",
            training=None if role == "reference" else layout,
            inference=score,
            generation=engine if role == "actor" else None,
        )
        for role in roles
    ]
    pool = Pool(name="A", device="h100-80gb-sxm", first_gpu=0, num_gpus=8, roles=roles)
    placement = "{" + ", ".join(roles) + "}"
    plan = Plan(algorithm=job.algorithm, placement=placement, pools=(pool,), roles=tuple(entries))
    return PlanFile.model_construct(plan=plan, job=job.document), job


@pytest.mark.parametrize("name", CASES)
def test_the_plans_are_ones_that_run_and_keep_their_degrees(name):
    file, job = plan_file(name)
    assert check_plan(file.plan, job.facts()) == []
    assert not [point for point in export_plan(file, name, "verl").points if "layout" in point.text]


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    write_models(folder / "models")
    scripts = {}
    for i, name in enumerate(CASES):
        scripts[name] = folder / f"run{i}.sh"
        scripts[name].write_text(export_plan(plan_file(name)[0], name, "verl").files["run_verl.sh"])
    command = [str(PEERS / "bin" / "python"), "-W", "ignore", str(ENGINES), str(folder / "models")]
    done = subprocess.run([*command, *map(str, scripts.values())], capture_output=True, text=True, cwd=folder)
    answer = next((line for line in done.stdout.splitlines() if line.startswith("ANSWER ")), None)
    assert answer is not None, done.stderr[-2000:]
    found = json.loads(answer.removeprefix("ANSWER "))
    return {name: found[str(path)] for name, path in scripts.items()}


@pytest.mark.external
@pytest.mark.skipif(not READY, reason="no environment with verl and OpenRLHF; `make check-all` makes it")
@pytest.mark.parametrize("name", CASES)
def test_verls_own_engines_have_the_plans_parallel_state(states, name):
    file, _ = plan_file(name)
    for entry in file.plan.roles:
        layout, state = entry.training or entry.inference, states[name][entry.role]
        assert state["how_far"] == "built"
        assert state["world"] == 8
        for degree in ("tp", "pp", "cp", "dp"):
            assert state[degree] == getattr(layout, degree), (name, entry.role, degree)
        if name.startswith("fsdp"):
            assert state["sharded_over"] == 8
            assert state["sequence_group"] == list(range(layout.cp))
        else:
            assert (state["ep"], state["vpp"]) == (layout.ep, layout.vpp)
            assert state["tensor_group"] == list(range(layout.tp))
            assert state["pipeline_group"] == [stage * (8 // layout.pp) for stage in range(layout.pp)]
