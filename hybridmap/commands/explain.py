"""``hybridmap explain``: why a plan takes as long as it does, and what would make another one win."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import Json, ShowProgress
from hybridmap.console import say, say_json, working
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hybridmap.job.job import Job
    from mapper.analysis.explain import Explanation
    from mapper.analysis.memory_bottleneck import MemoryLimit
    from mapper.analysis.thresholds import Flip, Scan
    from mapper.price_families import Family
    from mapper.problem import Placement
    from mapper.result import RunnerUp
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

NAMES = {
    "compute": "arithmetic",
    "memory": "memory bandwidth",
    "nvlink": "NVLink",
    "network": "the network between nodes",
    "host": "host time",
}
LEAST_SHARE = 0.005
LEAST_S = 5.0
"""Seconds for thresholds, or half the limit, where the search for the plan left less."""
WORTH_S = 0.05


def explain(
    job: Annotated[
        Path | None,
        typer.Argument(metavar="[JOB.yaml]", help="The job to plan and explain.", show_default=False),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="plan.json", help="Explain this plan.", show_default=False)
    ] = None,
    time_limit: Annotated[
        float,
        typer.Option("--time-limit", min=1.0, metavar="SECONDS", help="Longest time to search, thresholds included."),
    ] = 10.0,
    show_progress: ShowProgress = False,
    as_json: Json = False,
) -> None:
    """Explain a plan.

    What each stage waits for, what memory keeps it from, where GPUs idle, what would make another placement win, and
    what the HybridFlow paper's observations come to in this job.
    """
    from mapper.analysis.explain import explain as explain_plan

    if (job is None) == (plan is None):
        raise InputError("explain needs either a JOB.yaml or --plan plan.json")
    began = time.perf_counter()
    with working("explaining ...", show_progress, as_json):
        given, found, others, goal = _from_plan(plan) if plan is not None else _from_job(job, time_limit)
        # Thresholds compare placements by time on all GPUs, which says nothing of another objective's winner.
        rivals = others if goal == "time" else ()
        left_s = max(time_limit - (time.perf_counter() - began), min(time_limit / 2, LEAST_S))
        answer = explain_plan(given.request(), found, rivals, left_s)
    if as_json:
        say_json(_document(answer, found, rivals))
        return
    note = [] if goal == "time" else [f"the objective is {goal}; thresholds compare plans by time and are left out"]
    _show(answer, given.facts(), found, rivals, note)


def _from_plan(path: Path) -> "tuple[Job, Plan, Sequence[RunnerUp], str]":
    from hybridmap.files.plan import read_plan_file
    from hybridmap.job.load import job_from_document
    from mapper.result import RunnerUp

    file = read_plan_file(path)
    given = job_from_document(file.job, f"{path}: job")
    return given, file.plan, [RunnerUp(r.placement, r.iteration_s, r.plan) for r in file.runners_up], file.objective


def _from_job(path: Path | None, limit_s: float) -> "tuple[Job, Plan, Sequence[RunnerUp], str]":
    from hybridmap.job.load import load_job
    from mapper.search.find_plan import find_plan

    assert path is not None, "checked by the command"
    given = load_job(path)
    result = find_plan(replace(given.request(), time_limit_s=limit_s))
    return given, result.plan, result.runners_up, result.objective.goal


def _show(answer: "Explanation", facts: "Facts", plan: "Plan", rivals: "Sequence[RunnerUp]", note: list[str]) -> None:
    from hybridmap.text.notation import placement_title
    from hybridmap.text.plan import header_lines

    say("\n".join(header_lines(facts, note)))
    say(f"plan        {placement_title(plan)}  {answer.timeline.iteration_s:,.2f} s")
    say()
    sections = {
        "time": _time_lines(answer),
        "memory": [line for limit in answer.memory for line in _memory_lines(limit, answer.timeline.iteration_s)],
        "idle": _idle_lines(answer),
        "thresholds": _threshold_lines(answer, facts, rivals),
        "findings": [finding.sentence for finding in answer.findings],
    }
    for title, lines in sections.items():
        for i, line in enumerate(lines):
            say(f"{title if i == 0 else '':<12}{line}")
        if lines:
            say()
    say(f"{answer.seconds:.1f} s")


def _time_lines(answer: "Explanation") -> list[str]:
    lines = []
    for stage in answer.stages:
        lines.append(
            f"{stage.stage.replace('_', ' ')} {stage.seconds:,.1f} s is bound by {NAMES[stage.bottleneck]}: "
            f"{_shares(stage.shares)}"
        )
    saved = {f: answer.timeline.iteration_s - s for f, s in answer.twice_as_fast.items()}
    worth = sorted((f for f in saved if saved[f] >= WORTH_S), key=lambda f: -saved[f])
    if worth:
        lines.append(f"twice as fast saves: {', '.join(f'{NAMES[f]} {saved[f]:,.1f} s' for f in worth)}")
    return lines


def _shares(shares: "Mapping[Family, float]") -> str:
    large = sorted((f for f in shares if shares[f] >= LEAST_SHARE), key=lambda f: -shares[f])
    parts = [f"{NAMES[f]} {shares[f]:.0%}" for f in large]
    fixed = 1.0 - sum(shares.values())
    return ", ".join([*parts, f"kernel launches and the rest {fixed:.0%}"] if fixed >= LEAST_SHARE else parts)


def _memory_lines(limit: "MemoryLimit", iteration_s: float) -> list[str]:
    from hybridmap.text.notation import generation_text, gib, scoring_text, training_text

    largest = max(limit.classes, key=lambda name: limit.classes[name])
    usable = limit.usable_bytes or limit.capacity_bytes
    lines = [
        f"pool {limit.pool}: {gib(limit.used_bytes)} of {gib(usable)} GiB in {limit.call}, most of it "
        f"{largest} ({gib(limit.classes[largest])} GiB)"
    ]
    if limit.better is None:
        return [*lines, f"pool {limit.pool}: memory does not bind; no other layout of one role would be faster"]
    entry = limit.better.entry
    parts = {
        "training": training_text(entry.training),
        "generation": generation_text(entry.generation),
        "scoring": scoring_text(entry.inference),
    }
    layouts = ", ".join(f"{text} in {name}" for name, text in parts.items() if text != "-")
    saves = iteration_s - limit.better.iteration_s
    short = f"pool {limit.pool}: {gib(limit.better.short_bytes)} GiB per GPU more would let {entry.role} use {layouts}"
    return [*lines, f"{short}, {saves:,.2f} s faster"]


def _idle_lines(answer: "Explanation") -> list[str]:
    whole = answer.timeline.iteration_s
    return [
        f"pool {idle.pool} is idle for {idle.seconds:,.1f} s ({idle.seconds / whole:.0%}), waiting for {idle.waits_for}"
        for idle in answer.idle
    ]


def _threshold_lines(answer: "Explanation", facts: "Facts", rivals: "Sequence[RunnerUp]") -> list[str]:
    scan = answer.scan
    if scan is None:
        return []
    first = min(rivals, key=lambda r: r.iteration_s)
    slower = first.iteration_s / answer.timeline.iteration_s - 1
    lines = [f"the runner-up {first.placement} is {slower:.1%} slower"]
    for i, flip in enumerate(scan.flips):
        sure = " (a search of everything agrees)" if i == 0 and answer.confirmed else ""
        unsure = " (a search of everything finds no flip yet)" if i == 0 and answer.confirmed is False else ""
        lines.append(f"{_flip_text(flip, facts)}{sure}{unsure}")
    return [*lines, *_untouched(scan)]


def _untouched(scan: "Scan") -> list[str]:
    lines = []
    if scan.steady:
        lines.append(f"no change by 8 in either direction alters who wins: {', '.join(scan.steady)}")
    if scan.skipped:
        lines.append(f"not tried in full, time was up: {', '.join(scan.skipped)} (--time-limit)")
    return lines


def _placement(rival: "Placement") -> str:
    from mapper.problem import sets_of
    from simulator.plan.plan import placement_name

    name = placement_name(sets_of(rival))
    if len({group.device_type for group in rival}) == 1:
        return name
    return f"{name} on {', '.join(group.device_type for group in rival)}"


def _flip_text(flip: "Flip", facts: "Facts") -> str:
    kinds = {"response": "responses as long", "prompts": "prompts", "nodes": "nodes"}
    what = kinds.get(flip.dimension, f"{flip.dimension} as fast")
    value = {
        "network": facts.group.inter_node_bytes_per_s * 8e-9,
        "prompts": facts.workload.prompts,
        "nodes": facts.group.nodes,
        "response": facts.workload.response.mean,
    }.get(flip.dimension)
    unit = {"network": " Gbit/s of a node", "response": " tokens"}.get(flip.dimension, "")
    at = "" if value is None else f" ({value * flip.holds:,.0f} to {value * flip.wins:,.0f}{unit})"
    return f"{flip.holds:.3g} to {flip.wins:.3g} x {what}{at}: {_placement(flip.rival)} wins"


def _document(answer: "Explanation", plan: "Plan", rivals: "Sequence[RunnerUp]") -> dict[str, Any]:
    scan = answer.scan
    return {
        "iteration_s": answer.timeline.iteration_s,
        "plan": plan.model_dump(mode="json"),
        "stages": [asdict(s) | {"bottleneck": s.bottleneck} for s in answer.stages],
        "twice_as_fast_s": dict(answer.twice_as_fast),
        "memory": [_limit_document(limit) for limit in answer.memory],
        "idle": [asdict(idle) for idle in answer.idle],
        "runners_up": [{"placement": r.placement, "iteration_s": r.iteration_s} for r in rivals],
        "thresholds": [asdict(flip) for flip in scan.flips] if scan else [],
        "confirmed": answer.confirmed,
        "steady": list(scan.steady) if scan else [],
        "skipped": list(scan.skipped) if scan else [],
        "findings": [asdict(finding) for finding in answer.findings],
    }


def _limit_document(limit: "MemoryLimit") -> dict[str, Any]:
    better = limit.better
    return {
        "pool": limit.pool,
        "used_bytes": limit.used_bytes,
        "capacity_bytes": limit.capacity_bytes,
        "usable_bytes": limit.usable_bytes,
        "call": limit.call,
        "classes": dict(limit.classes),
        "better": None
        if better is None
        else {
            "role": better.entry.model_dump(mode="json"),
            "short_bytes": better.short_bytes,
            "iteration_s": better.iteration_s,
        },
    }
