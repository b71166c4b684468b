"""What makes two runs the same run: a checkpoint resumes only with the learning rules, data and weights it has seen.

Layouts, placement, engines, devices and the number of iterations may differ.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiles.errors import InputError

if TYPE_CHECKING:
    from executor.rl.hyperparameters import Hyperparameters
    from executor.run_config import RunConfig
    from executor.run_settings import JobFacts
    from simulator.plan.plan import Plan

SAME = (
    "data",
    "reward",
    "cost",
    "learning_rate",
    "critic_learning_rate",
    "max_grad_norm",
    "optimizer",
    "seed",
    "dtype",
    "environment",
)
"""Keys of the run section that decide what is learned, besides ``learning`` and ``weights``."""


def identity_of(job_facts: JobFacts, plan: Plan, config: RunConfig, hyper: Hyperparameters) -> dict[str, Any]:
    """Plain data that is equal for equal runs. Files count by what they hold, not by where they lie.

    Of safetensors files names and sizes are compared: reading all weights would take longer than loading them.
    """
    section = config.model_dump(mode="json")
    found = {name: section[name] for name in SAME}
    if config.optimizer.schedule == "cosine":
        found["optimizer"]["iterations"] = config.optimizer.iterations or config.iterations
    for name in ("file", "tokenizer"):
        if found["data"][name] is not None:
            found["data"][name] = _contents(Path(found["data"][name]))
    learning = hyper.model_dump(mode="json", exclude={"staleness_bound"})  # the plan's schedule decides it
    weights = {
        entry.role: _contents(Path(config.weights_of(entry.role)))
        for entry in plan.roles
        if config.function_of(entry.role) is None
    }
    work = dataclasses.asdict(job_facts.workload)
    given = {"algorithm": plan.algorithm, "workload": work, "learning": learning, "weights": weights, **found}
    if job_facts.implementation.lora_rank:
        built = job_facts.implementation
        given["adapters"] = {"rank": built.lora_rank, "targets": built.lora_targets, "alpha": config.lora_alpha}
    document: dict[str, Any] = json.loads(json.dumps(given))
    return document


def require_same_run(saved: dict[str, Any], given: dict[str, Any], source: str) -> None:
    """Raise ``InputError`` naming each key in which a run differs from the one that made a checkpoint."""
    a, b = dict(_flat(saved)), dict(_flat(given))
    different = [key for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]
    if different:
        changes = "; ".join(f"{key} was {a.get(key)} and is {b.get(key)}" for key in different)
        raise InputError(
            f"{source} was made by another run: {changes}. Set these as they were, or begin anew without --resume"
        )


def _flat(document: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in document.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found


def _contents(path: Path) -> str:
    """A short digest of a file, or of a folder's small files and of the names and sizes of its weights."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.glob("*")):
        if file.suffix == ".safetensors":
            digest.update(f"{file.name} {file.stat().st_size}".encode())
        elif file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
