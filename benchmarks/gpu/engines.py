"""The engines that plans are priced for, beside what the catalogue of this device says that they take."""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.measure import (
    PACKAGES,
    ROLES,
    card_of,
    hybridmap,
    job_document,
    plan_here,
    read,
    run_section,
    write,
)

if TYPE_CHECKING:
    import argparse

    from simulator.plan.plan import Plan

TRAINERS = {"fsdp2": ("fsdp@2.13", 3), "megatron-core": ("megatron-core@0.16", 1)}
"""Each trainer as the catalogue prices it, and the ZeRO stage that it is priced in."""
GENERATOR = "vllm@0.32"
GENERATED = ("generation", "transition")
"""Stages that depend on the engine that generates."""
WARMUP_ITERATIONS = 3


def engines(options: argparse.Namespace) -> int:
    """All roles on all devices, on each trainer beside vLLM; by stage what was predicted and what was measured.

    Where vLLM is missing torch-native generates, and what takes its time is not compared.
    """
    found, rows = read(options, "environment.json"), []
    generation = "torch-native" if "vllm" in found["absent"] else "vllm"
    for training, (priced, zero_stage) in TRAINERS.items():
        row: dict[str, Any] = {"training": training, "generation": generation}
        lacking = [p for e, p in PACKAGES.items() if e in row.values() and p in found["absent"]]
        card = card_of(found)
        if lacking or card is None:
            why = f"{', '.join(lacking)} is not installed" if lacking else "the catalogue has no such device"
            rows.append(row | {"left_out": why})
            write(options, "engines.json", rows)
            continue
        plan = _in_stage(plan_here(options, ((ROLES, found["num_devices"]),)), zero_stage)
        rows.append(row | {"device": card} | _compared(options, (training, generation), priced, plan))
        print(f"{training} and {generation}: {rows[-1].get('error', 'ran')}", flush=True)
        write(options, "engines.json", rows)
    return int(any("error" in row for row in rows))


def _in_stage(plan: Plan, zero_stage: int) -> Plan:
    roles = []
    for entry in plan.roles:
        layouts = {name: getattr(entry, name) for name in ("training", "inference")}
        cut = {name: x.model_copy(update={"zero_stage": zero_stage}) for name, x in layouts.items() if x is not None}
        roles.append(entry.model_copy(update=cut))
    return plan.model_copy(update={"roles": tuple(roles)})


def _compared(options: argparse.Namespace, names: tuple[str, str], priced: str, plan: Plan) -> dict[str, Any]:
    """Seconds of each stage: predicted; measured in the middle, and the least and the most."""
    from hybridmap.job.load import load_job
    from profiles.errors import HybridmapError
    from simulator.play.simulate import simulate

    training, generation = names
    out = options.out / f"engines-{training}"
    out.mkdir(exist_ok=True)
    job, planned = out / "job.yaml", out / "plan.json"
    document = job_document(options) | {"engines": {"training": priced, "generation": GENERATOR}}
    job.write_text(json.dumps(document))
    try:
        predicted = simulate(plan, load_job(job).facts()).stages
    except HybridmapError as error:
        return {"error": str(error)}
    run = run_section(options, {"training": training, "generation": generation})
    job.write_text(json.dumps(document | {"run": run}))
    planned.write_text(plan.model_dump_json())
    number = WARMUP_ITERATIONS + options.iterations
    ran = hybridmap("run", job, "--plan", planned, "--iterations", number, "--out", out)
    if "error" in ran:
        return ran
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()][WARMUP_ITERATIONS:]
    stages = [stage for stage in predicted if any(f"seconds/{stage}" in line for line in lines)]
    stages = [stage for stage in stages if generation == "vllm" or stage not in GENERATED]
    seconds = {stage: sorted(line.get(f"seconds/{stage}", 0.0) for line in lines) for stage in stages}
    measured = {stage: {"s": median(of), "low_s": of[0], "high_s": of[-1]} for stage, of in seconds.items()}
    return {"predicted_s": dict(predicted), "measured": measured}
