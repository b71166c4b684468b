"""Plans whose parallel state is read back from verl's own engines: six for Megatron-Core, six for FSDP.

Each is exported; on eight CPU ranks (gloo) verl builds the engines of its roles from the written settings
(``verl_engines_check.py``), and what Megatron-Core and torch then say of themselves is held against the plan.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridmap.exports.systems import export_plan
from hybridmap.files.plan import PlanFile
from hybridmap.job.load import job_from_document
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, TokenBudget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridmap.job.job import Job

SCRIPT = Path(__file__).with_name("verl_engines_check.py")
DENSE, EXPERTS = "llama-3.2-1b", "qwen1.5-moe-a2.7b"
RANKS = 8
Case = tuple[str, tuple[str, ...], dict[str, int]]

_MEGATRON: dict[str, Case] = {
    "tensor": (DENSE, ("actor", "reference"), {"tp": 4}),
    "pipeline": (DENSE, ("actor", "reference"), {"tp": 2, "pp": 2}),
    "interleaved": (DENSE, ("actor",), {"pp": 2, "vpp": 2}),
    "context": (DENSE, ("actor", "reference"), {"tp": 2, "cp": 2}),
    "experts": (EXPERTS, ("actor", "reference"), {"tp": 2, "ep": 4}),
    "critic": (DENSE, ("actor", "critic"), {"tp": 2, "pp": 2, "cp": 2}),
}
_FSDP: dict[str, Case] = {
    "sharded": (DENSE, ("actor",), {}),
    "with reference": (DENSE, ("actor", "reference"), {}),
    "ulysses 2": (DENSE, ("actor", "reference"), {"cp": 2}),
    "ulysses 4": (DENSE, ("actor",), {"cp": 4}),
    "ulysses 8": (DENSE, ("actor", "reference"), {"cp": 8}),
    "with critic": (DENSE, ("actor", "critic", "reference"), {"cp": 2}),
}
CASES: dict[str, Case] = {f"megatron, {name}": case for name, case in _MEGATRON.items()} | {
    f"fsdp, {name}": case for name, case in _FSDP.items()
}


def plan_file(name: str) -> tuple[PlanFile, Job]:
    """A plan file in which all of a process have these degrees, on eight GPUs."""
    model, roles, degrees = CASES[name]
    fsdp = name.startswith("fsdp")
    job = _job(model, roles, "fsdp@2.13" if fsdp else "megatron-core@0.16")
    layout = ParallelLayout(
        dp=RANKS // (degrees.get("tp", 1) * degrees.get("pp", 1) * degrees.get("cp", 1)),
        zero_stage=3 if fsdp else 1,
        micro_batch=4 if "vpp" in degrees else TokenBudget(tokens=4096),
        recompute="full",
        **degrees,
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
    pool = Pool(name="A", device="h100-80gb-sxm", first_gpu=0, num_gpus=RANKS, roles=roles)
    placement = "{" + ", ".join(roles) + "}"
    plan = Plan(algorithm=job.algorithm, placement=placement, pools=(pool,), roles=tuple(entries))
    return PlanFile.model_construct(plan=plan, job=job.document), job


def _job(model: str, roles: tuple[str, ...], training: str) -> Job:
    return job_from_document(
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
            "engines": {"training": training},
            "implementation": {"old_log_prob": "trainer"},
        }
    )


def states(python: Path, folder: Path, models: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """By plan and role, what verl's engines say; ``models`` is a folder of ``check.write_models``."""
    scripts = {name: folder / f"run{i}.sh" for i, name in enumerate(CASES)}
    for name, path in scripts.items():
        path.write_text(export_plan(plan_file(name)[0], name, "verl").files["run_verl.sh"])
    command = [str(python), "-W", "ignore", str(SCRIPT), str(models)]
    done = subprocess.run([*command, *map(str, scripts.values())], capture_output=True, text=True, cwd=folder)
    answer = next((line for line in done.stdout.splitlines() if line.startswith("ANSWER ")), None)
    if answer is None:
        raise RuntimeError(f"verl's engines said nothing: {done.stderr[-2000:]}")
    found = json.loads(answer.removeprefix("ANSWER "))
    return {name: found[str(path)] for name, path in scripts.items()}


def expected(name: str, role: str) -> dict[str, Any]:
    """What the plan says that an engine's state is."""
    entry = plan_file(name)[0].plan.role(role)
    layout = entry.training or entry.inference
    assert layout is not None, "each role trains or scores"
    common = {"how_far": "built", "world": RANKS, "tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "dp": layout.dp}
    if name.startswith("fsdp"):
        return {**common, "sharded_over": RANKS, "sequence_group": list(range(layout.cp))}
    return {
        **common,
        "ep": layout.ep,
        "vpp": layout.vpp,
        "tensor_group": list(range(layout.tp)),
        "pipeline_group": [stage * (RANKS // layout.pp) for stage in range(layout.pp)],
    }


def table(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """The lines of the table of states, as Markdown."""
    lines = [
        "",
        f"## Parallel state of verl's engines, built from exported settings on {RANKS} CPU ranks and read back",
        "",
        "| plan | role | read back | as planned |",
        "|---|---|---|---|",
    ]
    for name, roles in found.items():
        for role, state in roles.items():
            degrees = (f"{key} {state[key]}" for key in ("tp", "pp", "cp", "dp", "ep", "vpp") if state.get(key, 1) > 1)
            as_planned = "yes" if state == expected(name, role) else "**no**"
            lines.append(f"| {name} | {role} | {', '.join(degrees)} | {as_planned} |")
    return lines
