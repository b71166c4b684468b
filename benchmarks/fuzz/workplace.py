"""The folder that inputs are written into: beside them lies what a job may name, and what it had better not."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from profiles.tables.write import write_table

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ABOUT: Mapping[str, Any] = {"device_string": "NVIDIA A100-SXM4-80GB", "facts": {}}


def prepare(folder: Path) -> None:
    """Fill an empty folder: the examples' files, a histogram, a device, a link to itself, a pipe, a folder."""
    for file in (EXAMPLES / "run").glob("*.json"):
        shutil.copy(file, folder)
    (folder / "lengths.csv").write_text("length,count\n16,4\n64,10\n512,1\n")
    (folder / "prompts.jsonl").write_text('{"prompt": "12=", "answer": "12"}\n')
    with contextlib.suppress(FileExistsError):
        os.symlink("loop", folder / "loop")
        os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir(exist_ok=True)
    write_device(folder / "device")


def write_device(folder: Path) -> None:
    """A small device folder: the card of an A100 and a GEMM table of a few rows."""
    folder.mkdir(exist_ok=True)
    shutil.copy(ROOT / "profiles" / "data" / "a100-80gb-sxm" / "device.yaml", folder)
    rows = [
        {
            "dtype": "bf16",
            "m": m,
            "n": n,
            "k": k,
            "latency_s": 1e-6 + 1e-12 * m * n * k,
            "repeats": 9,
            "outliers": 0,
            "error": "",
        }
        for m in (1, 64, 4096)
        for n in (64, 4096)
        for k in (64, 4096)
    ]
    write_table(folder, "gemm", rows, ABOUT)


@functools.cache
def jobs() -> tuple[bytes, ...]:
    """Job files to start from: every shipped one, and one with each optional section."""
    shipped = [file.read_bytes() for file in sorted([*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("run/*.yaml")])]
    return (*shipped, yaml.safe_dump(FULL_JOB, sort_keys=False).encode())


FULL_JOB: Mapping[str, Any] = {
    "algorithm": "grpo",
    "models": {"actor": {"shape": "tiny-config.json", "precision": "bf16"}, "reference": "llama-3.2-1b"},
    "workload": {
        "prompts": 64,
        "samples_per_prompt": 4,
        "prompt_length": 128,
        "prompt_tokens": 100.5,
        "epochs": 1,
        "minibatches": 2,
        "response_length": {"histogram": "lengths.csv"},
        "reward_s_per_sample": 0.01,
    },
    "cluster": [
        {
            "device": "h100-80gb-sxm",
            "nodes": 2,
            "gpus_per_node": 8,
            "inter_node_gbps": 400,
            "nvlink_domain_gpus": 8,
            "nodes_per_pod": 2,
        },
        {"device": "a100-80gb-sxm", "nodes": 1},
    ],
    "engines": {"training": "fsdp@2.13", "generation": "sglang@0.5"},
    "implementation": {
        "loss_head": "unfused",
        "attention_kernel": "flash-2",
        "lora_rank": 8,
        "packed_tokens": 4096,
        "expert_imbalance": 1.2,
        "training_dtype": "bf16",
        "fsdp_exposure": 0.5,
        "expert_dispatch": "hybrid",
        "captured": ["attention", "router"],
        "engine_driver": "ray-graph",
    },
    "objective": {"minimise": "gpus", "target_iteration_s": 100.0},
    "pin": {
        "share": {"require": [["actor", "reference"]]},
        "spare_nodes": {"h100-80gb-sxm": 1},
        "actor": {"gpus": 8, "training": {"tp": [1, 2], "pp": 1}, "generation": {"tp": 1}, "device": "h100-80gb-sxm"},
    },
    "schedule": {"kind": "any"},
    "search": {"offload": True, "interleaving": False, "tensor_parallel_across_nodes": False},
    "run": {
        "plan": "grpo-tiny-plan.json",
        "weights": {"actor": "tiny-config.json"},
        "seed": 3,
        "dtype": "fp32",
        "data": {"file": "prompts.jsonl", "alphabet": "0123456789=+"},
        "reward": {"function": "math"},
        "learning": {"kl_coefficient": 0.01, "kl_target": 0.1, "end_token": 3},
        "engines": {"training": "as-planned"},
    },
}
