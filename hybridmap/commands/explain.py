"""``hybridmap explain``: why a plan takes as long as it does, and what would make another one win."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import AllowDownload, Json, ModelConfig, ShowProgress
from hybridmap.commands.planned import read_planned
from hybridmap.console import say, say_json, working
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridmap.job.job import Job
    from mapper.analysis.explain import Explanation
    from mapper.analysis.memory_bottleneck import MemoryLimit
    from mapper.result import RunnerUp
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

LEAST_S = 5.0
"""Seconds for thresholds, or half the limit, where the search for the plan left less."""


def explain(
    job: Annotated[
        Path | None,
        typer.Argument(
            metavar="[plan.json | JOB.yaml]", help="A plan, or the job to plan and explain.", show_default=False
        ),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="plan.json", help="Explain this plan.", show_default=False)
    ] = None,
    time_limit: Annotated[
        float,
        typer.Option("--time-limit", min=1.0, metavar="SECONDS", help="Longest time to search, thresholds included."),
    ] = 10.0,
    show_progress: ShowProgress = False,
    model_config: ModelConfig = None,
    allow_download: AllowDownload = False,
    as_json: Json = False,
) -> None:
    """Explain a plan.

    What each stage waits for, what memory keeps it from, where GPUs idle, what would make another placement win, and
    what the HybridFlow paper's observations come to in this job.
    """
    from hybridmap.files.plan import is_plan_file
    from hybridmap.job.load import load_job
    from mapper.analysis.explain import explain as explain_plan

    if job is not None and plan is None and is_plan_file(job):
        plan, job = job, None
    if (job is None) == (plan is None):
        raise InputError("explain needs either a plan.json or a JOB.yaml")
    began = time.perf_counter()
    with working("explaining ...", show_progress, as_json):
        if job is not None:
            loaded = load_job(job, model_config=model_config, allow_download=allow_download)
            given, found, others, goal = _planned(loaded, time_limit)
        else:
            given, found, others, goal = _from_plan(plan)
        # Thresholds compare placements by time on all GPUs, which says nothing of another objective's winner.
        rivals = others if goal == "time" else ()
        left_s = max(time_limit - (time.perf_counter() - began), min(time_limit / 2, LEAST_S))
        answer = explain_plan(given.request(), found, rivals, left_s)
    if as_json:
        say_json(_document(answer, given.facts(), found, rivals))
        return
    note = [] if goal == "time" else [f"the objective is {goal}; thresholds compare plans by time and are left out"]
    _show(answer, given.facts(), found, rivals, note)


def _from_plan(path: Path | None) -> "tuple[Job, Plan, Sequence[RunnerUp], str]":
    from mapper.result import RunnerUp

    assert path is not None, "checked by the command"
    file, given, _ = read_planned(path)
    return given, file.plan, [RunnerUp(r.placement, r.iteration_s, r.plan) for r in file.runners_up], file.objective


def _planned(given: "Job", limit_s: float) -> "tuple[Job, Plan, Sequence[RunnerUp], str]":
    from mapper.search.find_plan import find_plan

    result = find_plan(replace(given.request(), time_limit_s=limit_s))
    return given, result.plan, result.runners_up, result.objective.goal


def _show(answer: "Explanation", facts: "Facts", plan: "Plan", rivals: "Sequence[RunnerUp]", note: list[str]) -> None:
    from hybridmap.text.evidence import price_lines
    from hybridmap.text.explain import answer_line, idle_lines, memory_lines, threshold_lines, time_lines
    from hybridmap.text.notation import placement_title
    from hybridmap.text.plan import header_lines

    say(f"{answer_line(answer)}\n{placement_title(plan)} on {plan.num_gpus:,} GPUs\n")
    say("\n".join(header_lines(facts, note)))
    sections = {
        "time": time_lines(answer),
        "rests on": price_lines(answer.timeline, facts),
        "memory": [line for limit in answer.memory for line in memory_lines(limit, answer.timeline.iteration_s)],
        "waiting": idle_lines(answer),
        "who wins": threshold_lines(answer, facts, rivals),
        "observed": [finding.sentence for finding in answer.findings],
    }
    for title, lines in sections.items():
        for i, line in enumerate(lines):
            say(f"{title if i == 0 else '':<12}{line}")
        if lines:
            say()
    say(f"explained in {answer.seconds:.1f} s")


def _document(answer: "Explanation", facts: "Facts", plan: "Plan", rivals: "Sequence[RunnerUp]") -> dict[str, Any]:
    from hybridmap.text.evidence import evidence_of

    scan = answer.scan
    return {
        "iteration_s": answer.timeline.iteration_s,
        "plan": plan.model_dump(mode="json"),
        "stages": [asdict(s) | {"bottleneck": s.bottleneck} for s in answer.stages],
        "prices": [asdict(price) for price in evidence_of(answer.timeline, facts)],
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
