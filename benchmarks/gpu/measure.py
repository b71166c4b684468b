"""The steps that compute: every engine once, the profile, and four placements predicted and measured."""

from __future__ import annotations

import json
import os
import string
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.gpu.compare_tables import card_named, compare_with_catalogue
from benchmarks.placements import plan_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from simulator.plan.plan import Plan

Places = tuple[tuple[tuple[str, ...], int], ...]

ENGINES = (
    ("torch-native", "torch-native"),
    ("fsdp2", "torch-native"),
    ("megatron-core", "torch-native"),
    ("fsdp2", "vllm"),
    ("megatron-core", "vllm"),
)
ROLES = ("actor", "critic", "reference", "reward")
CARD = "h100-80gb-sxm"
"""Named by job files of a rehearsal on CPUs, and of a GPU that the catalogue does not know."""
PACKAGES = {"vllm": "vllm", "megatron-core": "megatron-core"}
KV_CACHE_SHARE = 0.2
SIZES = {"cuda": (128, 256, 64, 32), "cpu": (32, 4, 3, 8)}
"""Prompts, their tokens, tokens of responses, and samples of a micro-batch: 10,000 tokens, which keep a GPU busy."""


def smoke(options: argparse.Namespace) -> int:
    """Two iterations on every pair of engines that is installed, on all devices; what fails is on record."""
    found = read(options, "environment.json")
    job, plan = options.out / "smoke.yaml", options.out / "smoke-plan.json"
    plan.write_text(plan_here(options, ((ROLES, found["num_devices"]),)).model_dump_json())
    rows = []
    for training, generation in ENGINES:
        row: dict[str, Any] = {"training": training, "generation": generation}
        lacking = [p for e, p in PACKAGES.items() if e in (training, generation) and p in found["absent"]]
        if lacking:
            rows.append(row | {"left_out": f"{', '.join(lacking)} is not installed"})
            continue
        document = job_document(options) | {
            "run": run_section(options, {"training": training, "generation": generation})
        }
        job.write_text(json.dumps(document))
        rows.append(row | hybridmap("run", job, "--plan", plan, "--iterations", 2, "--out", options.out / "smoke"))
        print(f"{training} and {generation}: {rows[-1].get('error', 'ran')}", flush=True)
    write(options, "smoke.json", rows)
    return int(any("error" in row for row in rows))


def profile(options: argparse.Namespace) -> int:
    """Measure the machine; where the catalogue has its device, set the tables beside its own."""
    from hybridmap.commands.profile import Device
    from hybridmap.commands.profile import profile as measure

    folder = options.out / "profile"
    measure(device=Device(options.device), quick=True, out=folder, models=[options.model])
    about = json.loads((options.out / "environment.json").read_text())
    names = [gpu["name"] for gpu in about["gpus"]][:1]
    write(options, "against-catalogue.json", compare_with_catalogue(folder, names[0]) if names else {})
    return 0


def placements(options: argparse.Namespace) -> int:
    """Validate one PPO job in four placements, as many as the node has devices for."""
    job, rows = options.out / "job.yaml", []
    job.write_text(json.dumps(job_document(options) | {"run": run_section(options, {})}))
    for name, places in placements_on(read(options, "environment.json")["num_devices"]).items():
        plan = options.out / f"{name}-plan.json"
        plan.write_text(plan_here(options, places).model_dump_json())
        asked = ("--plan", plan, "--profile", options.out / "profile", "--force-profile")
        to = ("--iterations", options.iterations, "--out", options.out / name)
        rows.append({"placement": name} | hybridmap("validate", job, *asked, *to))
        print(f"{name}: {rows[-1].get('error', 'ran')}", flush=True)
        write(options, "placements.json", rows)
    return int(any("error" in row for row in rows))


def placements_on(count: int) -> dict[str, Places]:
    """Four placements of PPO on ``count`` devices; fewer where there is no room for them."""
    half = count // 2
    found: dict[str, Places] = {"colocate": ((ROLES, count),)}
    if half:
        found["split"] = ((("actor", "reference"), half), (("critic", "reward"), half))
        found["mixed"] = ((("actor",), half), (("critic", "reference", "reward"), half))
        found["colocate-half"] = ((ROLES, half),)
    if count >= len(ROLES):
        del found["colocate-half"]
        found["standalone"] = tuple(((role,), count // len(ROLES)) for role in ROLES)
    return found


def plan_here(options: argparse.Namespace, places: Places) -> Plan:
    """Data parallelism over each pool."""
    from hybridmap.job.load import load_job

    job = options.out / "plain.yaml"
    job.write_text(json.dumps(job_document(options)))
    facts = load_job(job).facts()
    on_gpu = options.device == "cuda"
    cache = int(facts.memory_capacity_bytes * KV_CACHE_SHARE) if on_gpu else 1 << 24
    return plan_of(facts, places, SIZES[options.device][3], cache)


def job_document(options: argparse.Namespace) -> dict[str, Any]:
    """The job part of the files that are run."""
    prompts, length, response, _ = SIZES[options.device]
    work = {"prompts": prompts, "prompt_length": length, "response_length": response, "minibatches": 2}
    model = str(Path(options.model).resolve()) if options.model.endswith(".json") else options.model
    cluster = [{"device": card_of(read(options, "environment.json")) or CARD, "nodes": 1}]
    return {"algorithm": "ppo", "models": dict.fromkeys(ROLES, model), "workload": work, "cluster": cluster}


def card_of(found: Mapping[str, Any]) -> str | None:
    """The catalogue's name of the node's GPU, ``None`` where it has none; a rehearsal on a CPU takes any."""
    return card_named(found["gpus"][0]["name"]) if found["gpus"] else CARD


def run_section(options: argparse.Namespace, engines: Mapping[str, str]) -> dict[str, Any]:
    """Drawn weights, and prompts of digits that are as long as the job says, since padding is no work."""
    from profiles.models.catalogue import model_config

    config = options.out / "config.json"
    config.write_text(json.dumps(dict(model_config(job_document(options)["models"]["actor"]))))
    return {
        "weights": {"actor": str(config.resolve())},
        "data": {"file": str(prompts_of(options).resolve()), "alphabet": string.digits},
        "dtype": "bf16" if options.device == "cuda" else "fp32",
        "cpu_ranks": options.cpu_ranks,
        "engines": dict(engines),
    }


def prompts_of(options: argparse.Namespace) -> Path:
    """A file of drawn prompts for one iteration; those after it take the same."""
    count, length, _, _ = SIZES[options.device]
    file: Path = options.out / "prompts.jsonl"
    random = np.random.default_rng(0)
    lines = ["".join(map(str, digits)) for digits in random.integers(0, 10, (count, length))]
    file.write_text("".join(json.dumps({"prompt": line}) + "\n" for line in lines))
    return file


def hybridmap(*arguments: object) -> dict[str, Any]:
    """The answer of a command in a process of its own, or ``error``: its message, or the end of what it said."""
    command = [sys.executable, "-m", "hybridmap", *map(str, arguments), "--json"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        return {"error": f"exit {done.returncode}: {_message(done)[-2000:]}"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _message(done: subprocess.CompletedProcess[str]) -> str:
    try:
        return str(json.loads(done.stdout)["error"]).strip()
    except (ValueError, KeyError, TypeError):
        return (done.stderr + done.stdout).strip()


def read(options: argparse.Namespace, name: str) -> Any:
    """What an earlier step wrote."""
    return json.loads((options.out / name).read_text())


def write(options: argparse.Namespace, name: str, document: Any) -> None:
    """Keep what a step found."""
    (options.out / name).write_text(json.dumps(document, indent=1) + "\n")
