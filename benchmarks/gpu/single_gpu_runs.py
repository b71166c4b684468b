"""Iterations of a random-weight model on one device, predicted from the profile beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from executor.run import run
from executor.run_config import parse_run
from hybridmap.validation.comparison import compare, memory_amounts
from profiles.engine_facts import load_generation_engine, load_training_engine
from profiles.engine_names import FOLDER, GENERATION, TRAINING
from profiles.hardware import ClusterGroup
from profiles.models.catalogue import load_model, model_config
from profiles.models.probe_models import tiny_config
from profiles.store import load_device
from profiles.workload import LengthDistribution, Workload
from simulator.facts import Facts, Implementation, RoleSpec
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name
from simulator.play.simulate import simulate

if TYPE_CHECKING:
    from pathlib import Path

ROLES = {"ppo": ("actor", "critic", "reference", "reward"), "grpo": ("actor",)}
ALPHABET = "0123456789=+"
WARMUP, MOST_ITERATIONS = 2, 12
SIZES = {"tiny": (32, 4, 3, 16), "qwen2.5-0.5b": (64, 256, 128, 8), "qwen2.5-1.5b": (32, 256, 128, 4)}
"""Samples, prompt tokens, response tokens, micro-batch."""


def run_and_compare(out: Path, model: str, algorithm: str, device: str, left_s: float) -> dict[str, Any]:
    """Run ``algorithm`` on one device; predicted and measured seconds by stage and call, and the timeline's file."""
    folder = out / f"{algorithm}-{model}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    document = tiny_config(layers=2, hidden=64) if model == "tiny" else dict(model_config(model))
    path.write_text(json.dumps(document))
    facts = _facts(out / "profile", path, algorithm, model, "bf16" if device == "cuda" else "fp32")
    plan = _plan(facts, SIZES[model][3])
    bare = replace(facts, training=replace(facts.training, dispatch_s=0.0))
    predicted, iteration_s = simulate(plan, bare), simulate(plan, facts).iteration_s
    iterations = WARMUP + max(3, min(MOST_ITERATIONS, int(left_s / 4 / max(iteration_s, 0.01))))
    config = _config(path, "bf16" if device == "cuda" else "fp32")
    timelines = run(facts, plan, config, folder, iterations)
    found = compare(predicted, iteration_s, timelines[WARMUP:], memory_amounts(predicted, timelines[-1]))
    (folder / "predicted.json").write_text(predicted.model_dump_json(indent=1) + "\n")
    lines = [
        {"name": t.name, "predicted_s": t.predicted_s, "measured_s": t.measured_s, "spread": t.spread, "error": t.error}
        for t in (*found.stages, found.iteration)
    ]
    calls = [{"name": t.name, "predicted_s": t.predicted_s, "measured_s": t.measured_s} for t in found.calls]
    return {
        "model": model,
        "algorithm": algorithm,
        "iterations": found.iterations,
        "stages": lines,
        "calls": calls,
        "memory": [a.model_dump() for a in found.amounts],
    }


def _facts(profile: Path, config: Path, algorithm: str, model: str, dtype: str) -> Facts:
    device = load_device(profile)
    samples, prompt, response, _ = SIZES[model]
    training = load_training_engine(str(profile / FOLDER / TRAINING))
    spec = RoleSpec(load_model(str(config)), dtype)
    return Facts(
        algorithm=algorithm,
        roles=dict.fromkeys(ROLES[algorithm], spec),
        workload=Workload(samples // 4, 4, prompt, LengthDistribution.fixed(response), 1, 2),
        group=ClusterGroup(device.name, 1, 1, device.spec.inter_node_bytes_per_s_per_node, 1),
        device=device,
        training=replace(training, dispatch_s=training.dispatch_local_s),
        generation=load_generation_engine(str(profile / FOLDER / GENERATION)),
        implementation=Implementation(kernels="eager", loss_head="unfused", training_dtype=dtype),
    )


def _plan(facts: Facts, micro_batch: int) -> Plan:
    layout = ParallelLayout(dp=1, micro_batch=micro_batch)
    engine = GenerationLayout(
        dp=1, max_num_seqs=facts.workload.num_samples, kv_cache_bytes=int(facts.memory_capacity_bytes * 0.2)
    )
    roles = tuple(facts.roles)
    entries = tuple(
        RolePlan(
            role=role,
            pool="A",
            training=layout if facts.dataflow.is_trained(role) else None,
            inference=layout if any(c.kind == "forward" for c in facts.dataflow.calls_of(role)) else None,
            generation=engine if role == "actor" else None,
        )
        for role in roles
    )
    return Plan(
        algorithm=facts.algorithm,
        placement=placement_name((roles,)),
        roles=entries,
        pools=(Pool(name="A", device=facts.group.device, first_gpu=0, num_gpus=1, roles=roles),),
    )


def _config(path: Path, dtype: str) -> Any:
    return parse_run(
        {
            "weights": {"actor": str(path)},
            "dtype": dtype,
            "launcher": "local",
            "learning_rate": 1e-6,
            "data": {"task": "sorted-digits", "digits": 5, "alphabet": ALPHABET},
            "reward": {"function": "per-character"},
            "learning": {"entropy_coefficient": 0.01},
        }
    )
