"""Files as they should be, which inputs start from; beside those of the workplace."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.fuzz.mutate import as_json, as_yaml
from benchmarks.fuzz.workplace import EXAMPLES, ROOT, write_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@functools.cache
def plans() -> tuple[bytes, ...]:
    """Plan files of two algorithms."""
    from hybridmap.files.plan import plan_file_of
    from hybridmap.job.load import job_from_mapping
    from mapper.search.find_plan import find_plan

    out = []
    for algorithm, roles in (("ppo", ("actor", "critic", "reference", "reward")), ("grpo", ("actor", "reference"))):
        raw = {
            "algorithm": algorithm,
            "models": dict.fromkeys(roles, "llama-3.2-1b"),
            "workload": {"prompts": 64, "prompt_length": 256, "response_length": 256, "minibatches": 2},
            "cluster": [{"device": "h100-80gb-sxm", "nodes": 1}],
        }
        job = job_from_mapping(raw, "seed", ROOT)
        out.append(as_json(plan_file_of(job, find_plan(job.request()), "any", False).model_dump(mode="json")))
    return tuple(out)


def bare_plans() -> tuple[bytes, ...]:
    """The plans that are shipped."""
    return tuple(file.read_bytes() for file in sorted((EXAMPLES / "run").glob("*-plan.json")))


@functools.cache
def timelines() -> tuple[bytes, ...]:
    """What those plan files simulate to."""
    from hybridmap.job.load import job_from_document
    from simulator.plan.plan import Plan
    from simulator.play.simulate import simulate

    out = []
    for raw in map(json.loads, plans()):
        timeline = simulate(Plan.model_validate(raw["plan"]), job_from_document(raw["job"]).facts())
        out.append(as_json(timeline.model_dump(mode="json")))
    return tuple(out)


@functools.cache
def written_records() -> tuple[bytes, ...]:
    """A frontier and a what-if of two points each."""
    raw = json.loads(plans()[0])
    timeline = {"iteration_s": 2.0, "bound_s": 2.0, "tokens_per_s": 1e3, "status": "optimal", "num_gpus": 8}
    point = {
        **timeline,
        "up_to_gpus": 8,
        "gap": 0.0,
        "proven": True,
        "tokens_per_s_per_gpu": 125.0,
        "cost_per_iteration": None,
        "plan": raw["plan"],
    }
    case = {
        **timeline,
        "settings": {"workload.prompts": 1},
        "placement": "{actor}",
        "plan": raw["plan"],
        "changes": "",
        "error": None,
        "fewest_gpus": None,
        "stages": {"generation": 2.0},
    }
    frontier = {"schema_version": 1, "hybridmap_version": "0", "job": raw["job"], "facts_hash": "", "seed": 0}
    what_if = {**frontier, "settings": {"workload.prompts": [1, 2]}, "base": case, "cases": [case]}
    return as_json({**frontier, "points": [point, point]}), as_json(what_if)


def configs() -> tuple[bytes, ...]:
    """config.json files of six families."""
    folder = ROOT / "profiles" / "models" / "configs"
    names = ("llama-3.1-8b", "qwen2.5-7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma-3-1b-pt", "mixtral-8x7b-v0.1")
    return tuple((folder / f"{name}.json").read_bytes() for name in names)


SCRIPT = rb"""#!/bin/bash
set -x
NNODES=${NNODES:-2}
export ACTOR=Qwen/Qwen2.5-7B-Instruct
micro_bsz=$((2 * 2))
if [ "$NNODES" -gt 1 ]; then gpus=8; else gpus=4; fi
LOG_PROB=(
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=${micro_bsz}
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4   # both must be set
)
python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo data.train_batch_size=1024 data.max_prompt_length=512 \
    data.max_response_length=1024 actor_rollout_ref.model.path=$ACTOR \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 trainer.n_gpus_per_node=$gpus \
    trainer.nnodes=$NNODES "${LOG_PROB[@]}" "$@"
"""


@functools.cache
def verl_scripts() -> tuple[bytes, ...]:
    """Launch scripts of verl, on Megatron-Core and on FSDP."""
    fsdp = SCRIPT.replace(b"--config-name='ppo_megatron_trainer.yaml' ", b"").replace(b"actor.megatron.tensor", b"x.y")
    return SCRIPT, fsdp


@functools.cache
def verl_documents() -> tuple[bytes, ...]:
    """The same settings as Hydra writes them: a list of overrides, and a nested config."""
    words = [word.decode() for word in SCRIPT.split() if b"=" in word and b"." in word and b"$" not in word]
    words += ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4", "trainer.n_gpus_per_node=8"]
    words += ["actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct", "trainer.nnodes=2"]
    nested: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        at = nested
        *parents, last = key.split(".")
        for part in parents:
            at = at.setdefault(part, {})
        at[last] = yaml.safe_load(value)
    return as_yaml(words[1:]), as_yaml(nested)


def device_files(name: str) -> Callable[[], Sequence[bytes]]:
    """A file of a small device folder, by its name."""

    @functools.cache
    def file() -> tuple[bytes, ...]:
        import tempfile
        from pathlib import Path as Folder

        with tempfile.TemporaryDirectory() as made:
            write_device(Folder(made) / "device")
            return ((Folder(made) / "device" / name).read_bytes(),)

    return file


@functools.cache
def weights() -> tuple[bytes, ...]:
    """A safetensors file of two tensors."""
    import numpy as np
    from safetensors.numpy import save

    return (save({"a.weight": np.ones((4, 2), np.float32), "b": np.zeros(3, np.float16)}, {"format": "pt"}),)


def engines() -> tuple[bytes, ...]:
    """Constants of an engine that generates and of two that train."""
    folder = ROOT / "profiles" / "engines"
    return tuple((folder / f"{name}.yaml").read_bytes() for name in ("vllm@0.32", "megatron-core@0.16", "fsdp@2.13"))


CALIBRATION = {
    "device": "d",
    "training": "t",
    "generation": "g",
    "system": "verl",
    "source": "train.log",
    "date": "2026-01-01",
    "steps": 5,
    "left_out": {"warm-up": [1]},
    "log_factors": [0.1] * 7,
    "covariance": [[0.04 * (i == j) for j in range(7)] for i in range(7)],
    "seconds_per_sample": {"compute_advantage": 0.001},
    "stages": [
        {"calls": ["update_actor"], "measured_s": 1.0, "error_before": 0.1, "error_after": 0.01, "steps": 2},
    ],
    "lengths": {"response_mean": 100.0, "clipped": 0.1},
}
RUN_LOGS = (
    b"(TaskRunner pid=1) step:1 - timing_s/gen:31.5 - timing_s/step:80.0 - response_length/mean:248.5\n",
    b'{"step": 1, "data": {"timing_s/gen": 31.5, "timing_s/update_actor": 33.5}}\n',
    b"INFO \xe2\x9c\xa8 Global step 4: {'timing/generation': 30.0, 'timing/step_total': 75.0}\n",
    b"INFO perf 4: {'perf/actor_train_time': 12.5, 'perf/step_time': 30.0}\n",
    b"==== Step 7/100 ====\n  \xe2\x80\xa2 Total step time: 40.00s\n  \xe2\x80\xa2 generation: 20.00s (50.0%)\n",
)
RUN_TABLES = (b"Step,timing_s/gen,timing_s/step\n1,31.5,80\n", b"key,value,step\ntiming_s/gen,31.5,1\n")
MANIFEST = {
    "schema_version": 1,
    "iteration": 12,
    "next_call": 100,
    "controls": {"kl": 0.1},
    "ahead": 0,
    "identity": {"algorithm": "ppo", "seed": 1},
    "layout": "{actor}",
    "roles": {
        "actor": {
            "num_ranks": 1,
            "counters": {"steps": 12},
            "files": {"a.safetensors": {"num_bytes": 4, "sha256": hashlib.sha256(b"1234").hexdigest()}},
        }
    },
}
HISTOGRAMS = (b"length,count\n16,4\n64,10\n512,1\n", b"count,length\r\n1,2\r\n3,4\r\n")
PROMPTS = (b'{"prompt": "12=", "answer": "12"}\n{"prompt": "3+4="}\n', b'{"prompt": "\\u00e9", "answer": 3}\n')
JOURNAL = (
    b'{"kind": "hybridmap-profile-journal", "machine": "a"}\n'
    b'{"table": "gemm", "key": {"m": 1, "n": 2}, "result": {"latency_s": 1e-6, "error": ""}}\n'
    b'{"table": "copy", "key": {"kind": "x"}, "result": {"latency_s": null, "error": "no"}}\n',
)
SETTINGS = (
    b"workload.prompts=256,512",
    b"cluster.0.nodes=4",
    b"pin={spare_nodes: 1}",
    b"models.actor={shape: llama-3.2-1b, precision: fp8}",
    b"workload.response_length={distribution: lognormal, mean: 5, max: 9}",
)


@functools.cache
def good_inputs() -> dict[str, bytes]:
    """A file as it should be for each name that a command line may give."""
    return {
        "plan.json": plans()[0],
        "timeline.json": timelines()[0],
        "frontier.json": written_records()[0],
        "config.json": configs()[0],
        "run.sh": SCRIPT,
    }
