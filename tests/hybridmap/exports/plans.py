"""Plans for the export tests: small jobs, planned once, that between them have every kind of pool."""

from __future__ import annotations

import functools

from hybridmap.files.plan import plan_file_of
from hybridmap.job.load import job_from_document
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan

PPO = {
    "algorithm": "ppo",
    "models": dict.fromkeys(("actor", "critic", "reference", "reward"), "llama-3.2-1b"),
    "workload": {"prompts": 64, "prompt_length": 256, "response_length": 256, "minibatches": 2},
    "cluster": [{"device": "h100-80gb-sxm", "nodes": 2}],
}
GRPO = {
    "algorithm": "grpo",
    "models": {"actor": "qwen2.5-1.5b", "reference": "qwen2.5-1.5b"},
    "workload": {
        "prompts": 32,
        "samples_per_prompt": 4,
        "prompt_length": 256,
        "response_length": {"distribution": "lognormal", "mean": 300, "max": 1024},
        "minibatches": 2,
    },
    "cluster": [{"device": "h100-80gb-sxm", "nodes": 1}],
    "implementation": {"old_log_prob": "trainer"},
}
REMAX = PPO | {"algorithm": "remax", "models": dict.fromkeys(("actor", "reference", "reward"), "llama-3.2-1b")}
SAFE = PPO | {"algorithm": "safe-rlhf", "models": {**PPO["models"], "cost": "llama-3.2-1b"}}
JOBS = {
    "colocate": (PPO, "colocate"),
    "split": (PPO, "split"),
    "standalone": (PPO, "standalone"),
    "grpo": (GRPO, "any"),
    "grpo-fsdp": (GRPO | {"engines": {"training": "fsdp@2.13"}}, "any"),
    "remax": (REMAX, "any"),
    "safe-rlhf": (SAFE, "colocate"),
}


@functools.cache
def plan_file(name):
    """The plan file of a job by name."""
    raw, placement = JOBS[name]
    job = job_from_document(raw)
    result = find_plan(SearchRequest(job.facts(), placement=placement, runners_up=False))
    return plan_file_of(job, result, placement, False)
