"""The engines that plans are priced for, beside what the catalogue of this device says that they take."""

from __future__ import annotations

import json
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


def engines(options: argparse.Namespace) -> int:
    """All roles on all devices, on each trainer beside vLLM; by stage what was predicted and what was measured.

    Where vLLM is missing torch-native generates, which nothing is priced for; the report names it.
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
    """What ``validate`` says of the plan, by the catalogue's prices."""
    training, generation = names
    out = options.out / f"engines-{training}"
    out.mkdir(exist_ok=True)
    job, planned = out / "job.yaml", out / "plan.json"
    run = run_section(options, {"training": training, "generation": generation})
    document = job_document(options) | {"engines": {"training": priced, "generation": GENERATOR}, "run": run}
    job.write_text(json.dumps(document))
    planned.write_text(plan.model_dump_json())
    asked = ("--plan", planned, "--as-planned", "--iterations", options.iterations, "--out", out)
    return hybridmap("validate", job, *asked)
