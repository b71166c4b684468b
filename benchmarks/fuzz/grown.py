"""Jobs that make sense: drawn setting by setting from values that people use, so that nearly all of them reach a plan.

Changed bytes and values mostly end at the reader. What these try lies behind it: facts, prices, the search, the proof.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.fuzz.mutate import as_yaml, changed_document

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from hybridmap.job.job import Job

ROLES = {
    "grpo": ("actor", "reference"),
    "ppo": ("actor", "critic", "reference", "reward"),
    "remax": ("actor", "reference", "reward"),
    "safe-rlhf": ("actor", "critic", "reference", "reward", "cost"),
}
MODELS = ("llama-3.2-1b", "qwen2.5-7b", "llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma-3-1b-pt")
DEVICES = ("a100-80gb-sxm", "h100-80gb-sxm", "h200-sxm", "b200-sxm", "l40s")
LENGTHS: tuple[Any, ...] = (
    64,
    1024,
    8192,
    {"mean": 1500, "std": 1200, "max": 8192},
    {"histogram": "lengths.csv"},
)
SOMETIMES: dict[str, tuple[Any, ...]] = {
    "objective": ({"minimise": "cost"}, {"minimise": "gpus", "target_iteration_s": 400.0}),
    "schedule": ({"kind": "any"}, {"kind": "one-step-off"}, {"kind": "sync"}),
    "memory": ({"headroom": "10%"}, {"headroom": 0.0}),
    "search": ({"prefer_plain": "5%"}, {"offload": True}, {"interleaving": False}),
    "implementation": ({"lora_rank": 16}, {"loss_head": "unfused"}, {"packed_tokens": 4096}),
    "pin": ({"actor": {"training": {"tp": [1, 2]}}}, {"share": {"require": [["actor", "reference"]]}}),
}
SEARCH_LIMIT_S = 60.0
"""Longest time of an input: its search is told to stop after a second, and may take ten more."""

SEARCHED = 20
"""One job in so many is searched, for a second at most; the others end where a search would begin."""


def grown_job(random: Random) -> bytes:
    """A job, one in four of them with something changed."""
    algorithm = random.choice(tuple(ROLES))
    model = random.choice(MODELS)
    job: dict[str, Any] = {
        "algorithm": algorithm,
        "models": {role: model if random.random() < 0.8 else random.choice(MODELS) for role in ROLES[algorithm]},
        "workload": {
            "prompts": random.choice((8, 64, 512, 1024)),
            "prompt_length": random.choice((64, 512, 1024)),
            "response_length": random.choice(LENGTHS),
            "minibatches": random.choice((1, 2, 4)),
        },
        "cluster": [
            {"device": device, "nodes": random.choice((1, 2, 4))}
            for device in random.sample(DEVICES, 1 + (random.random() < 0.15))
        ],
    }
    if algorithm == "grpo":
        job["workload"]["samples_per_prompt"] = random.choice((4, 8, 16))
    for section, values in SOMETIMES.items():
        if random.random() < 0.2:
            job[section] = random.choice(values)
    if random.random() < 0.25:
        with contextlib.suppress(ValueError, TypeError, OverflowError, yaml.YAMLError):  # what YAML cannot say
            return as_yaml(changed_document(random, job))
    return as_yaml(job)


def read_to_plan(path: Path) -> object:
    """A job up to what a search is given; one in ``SEARCHED`` to the plan, priced as simulated."""
    from hybridmap.job.load import load_job

    job = load_job(path)
    request = job.request()
    digest = hashlib.sha256(yaml.safe_dump(job.document, sort_keys=True).encode()).digest()
    return _planned(job) if digest[0] % SEARCHED == 0 else request


def _planned(job: Job) -> object:
    from dataclasses import replace

    from mapper.search.find_plan import find_plan
    from simulator.play.simulate import simulate

    request = job.request()
    result = find_plan(replace(request, time_limit_s=1.0))
    again = simulate(result.plan, job.facts()).iteration_s
    if abs(again / result.iteration_s - 1.0) > 1e-6:
        raise AssertionError(f"the search says {result.iteration_s} s, the simulator {again} s")
    return result
