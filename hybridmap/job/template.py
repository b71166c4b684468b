"""A commented ``JOB.yaml`` from a few answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.store import load_device
from profiles.units import gbit_per_s_to_bytes_per_s
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Mapping

NEEDS_REWARD_TIME = "seconds of one CPU worker per response, for the reward function"

MEANINGS = {
    "actor": "generates and is trained",
    "critic": "one value per token, trained",
    "reference": "scores only, for the KL term",
    "reward": "scores only",
    "cost": "scores only, harm beside reward",
}


@dataclass(frozen=True)
class Answers:
    """What a job file is written from; lengths in tokens."""

    algorithm: str
    models: Mapping[str, str]
    prompts: int
    samples_per_prompt: int
    prompt_length: int
    response_length: int
    mean_response_length: int | None
    minibatches: int
    device: str
    nodes: int
    target: str | None = None


def roles_of(algorithm: str) -> tuple[str, ...]:
    """Roles that a new job of this algorithm names: those it needs, and a reference where one is usual."""
    usual = ("reference",) if "reference" in ALGORITHMS[algorithm].optional_roles else ()
    return (*ALGORITHMS[algorithm].roles, *usual)


def job_text(answers: Answers) -> str:
    """The file, every key explained; what a device's card knows stands as a comment, so it is easy to change."""
    return "\n".join([*_head(answers), *_models(answers), *_workload(answers), *_cluster(answers), *_rest(answers), ""])


def _head(answers: Answers) -> list[str]:
    gpus = answers.nodes * load_device(answers.device).spec.gpus_per_node
    return [
        f"# {answers.algorithm} on {gpus:,} x {answers.device}. Plan it with: hybridmap plan THIS_FILE",
        f"algorithm: {answers.algorithm}   # {' | '.join(ALGORITHMS)}",
        "",
    ]


def _models(answers: Answers) -> list[str]:
    width = max(len(f"{role}: {name}") for role, name in answers.models.items())
    lines = ["# Names of `hybridmap models list`, or the path of a Hugging Face config.json.", "models:"]
    for role, name in answers.models.items():
        lines.append(f"  {f'{role}: {_quoted(name)}':<{width + 2}}   # {MEANINGS[role]}")
    missing = [role for role in ALGORITHMS[answers.algorithm].optional_roles if role not in answers.models]
    for role in missing:
        also = " (else the reward is a function)" if role == "reward" else ""
        lines.append(f"  # {role}: NAME   # optional: {MEANINGS[role]}{also}")
    return [*lines, ""]


def _quoted(name: str) -> str:
    plain = all(c.isalnum() or c in "-_./+" for c in name) and not name.replace(".", "").isdigit()
    return name if plain else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _workload(answers: Answers) -> list[str]:
    samples = answers.prompts * answers.samples_per_prompt
    lines = [
        "# The work of one iteration.",
        "workload:",
        f"  prompts: {answers.prompts}",
        f"  samples_per_prompt: {answers.samples_per_prompt}   # {samples:,} responses in all",
        f"  prompt_length: {answers.prompt_length}   # tokens",
        "  # A long tail up to the limit; better is what your logs say: mean, limit and, if known, p99.",
        f"  response_length: {_response(answers)}",
        f"  minibatches: {answers.minibatches}   # optimizer steps per pass over the samples",
        "  epochs: 1   # passes over the samples",
    ]
    if "reward" not in answers.models:
        lines.append(f"  reward_s_per_sample: 0.01   # {NEEDS_REWARD_TIME}; an assumption, measure yours")
    return [*lines, ""]


def _response(answers: Answers) -> str:
    mean = answers.mean_response_length or max(1, answers.response_length // 4)
    return f"{{distribution: lognormal, mean: {mean}, max: {answers.response_length}}}"


def _cluster(answers: Answers) -> list[str]:
    spec = load_device(answers.device).spec
    gbps = spec.inter_node_bytes_per_s_per_node / gbit_per_s_to_bytes_per_s(1.0)
    return [
        "cluster:",
        f"  - device: {answers.device}   # a name of `hybridmap devices list`, or the path of a device folder",
        f"    nodes: {answers.nodes}",
        f"    # gpus_per_node: {spec.gpus_per_node}   # from the device's card",
        f"    # inter_node_gbps: {gbps:g}   # Gbit/s of a node, all its network cards together; from the card",
        "",
    ]


def _rest(answers: Answers) -> list[str]:
    price = f"{{minimise: cost, price_per_gpu_hour: {{{answers.device}: 2.5}}}}"
    target = f"target: {answers.target}" if answers.target else "# target: verl/megatron"
    return [
        f"{target}   # whose rules hold the search: verl/fsdp, nemo-rl/megatron, openrlhf, slime, ...",
        f"objective: time   # or throughput_per_gpu, {price},",
        "                  # or {minimise: gpus, target_iteration_s: 200}",
        "",
        "# What is decided already; the search chooses the rest.",
        "# pin: {actor: {training: {tp: 8}}, share: {forbid: [[actor, critic]]}}",
    ]
