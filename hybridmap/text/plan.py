"""A plan and its timeline as lines and a table for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hybridmap.console import new_table, say, say_table
from hybridmap.job.notes import notes
from hybridmap.text.notation import (
    about,
    generation_text,
    gib,
    gpus_text,
    job_title,
    memory_text,
    percent,
    scoring_text,
    stages_text,
    training_text,
)
from hybridmap.text.worked import worked_lines
from mapper.analysis.fitted_constants import carrying_constants
from simulator.full_length import RAREST
from simulator.uncertainty import COVERAGE, NINETY, interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.facts import Facts
    from simulator.plan.plan import Plan, Pool, RolePlan
    from simulator.plan.timeline import PoolMemory, Timeline

COLUMNS = ("pool", "role", "training", "generation", "scoring")


def header_lines(facts: Facts, more: Sequence[str] = ()) -> list[str]:
    """The job in one line, then whatever is worth a look before anything is believed."""
    return [job_title(facts), *(f"note: {note}" for note in (*notes(facts), *more)), ""]


def answer_line(timeline: Timeline) -> str:
    """The time of an iteration with its interval, and the speed: what most readers came for."""
    low, high = interval_s(timeline)
    per_gpu = timeline.tokens_per_s / timeline.num_gpus
    return (
        f"about {about(timeline.iteration_s)} s an iteration ({about(low)} to {about(high)} s, 90 % interval), "
        f"{per_gpu:,.0f} tokens/s per GPU"
    )


def show_plan(plan: Plan, timeline: Timeline) -> None:
    """Print who is where and in which layout, then the stages and the speed."""
    table = new_table(COLUMNS, keys=2)
    for pool in plan.pools:
        for i, texts in enumerate(role_rows(plan, pool)):
            table.add_row(pool.name if i == 0 else "", *texts)
    say_table(table)
    say()
    for line in [*pool_lines(plan, timeline), *worked_lines(plan), *more_lines(plan)]:
        say(line)
    for note in memory_notes(timeline):
        say(f"note: {note}")
    say()
    say(f"stages      {stages_text(timeline.stages)}")
    say("\n".join(speed_lines(timeline)))


def pool_lines(plan: Plan, timeline: Timeline) -> list[str]:
    """The GPUs of each pool and what fills the fullest of them, when, and what of it is KV cache."""
    out, mixed = [], len(plan.gpus) > 1
    for pool in plan.pools:
        memory = timeline.memory[pool.name]
        engines = [entry.generation for entry in _engines_on(plan, pool)]
        kv = "".join(f", KV {gib(engine.kv_cache_bytes)}" for engine in engines if engine is not None)
        kind = f" {pool.device}" if mixed else ""
        out.append(
            f"{f'pool {pool.name}':<12}GPUs {gpus_text(pool)}{kind}: {memory_text(memory)}, peak in "
            f"{memory.peak_call}{kv}"
        )
    return out


def role_rows(plan: Plan, pool: Pool) -> list[tuple[str, str, str, str]]:
    """Role, training, generation and scoring of each role on a pool; an engine apart from its role is one more."""
    out = []
    for role in pool.roles:
        entry = plan.role(role)
        engine = None if entry.separate_generation else entry.generation
        out.append((role, training_text(entry.training), generation_text(engine), scoring_text(entry.inference)))
    for entry in _engines_on(plan, pool):
        if entry.separate_generation:
            out.append((f"{entry.role} (generator)", "", generation_text(entry.generation), ""))
    return out


def _engines_on(plan: Plan, pool: Pool) -> list[RolePlan]:
    """The roles that generate on a pool."""
    return [e for e in plan.roles if e.generation is not None and plan.generation_pool_of(e.role).name == pool.name]


def more_lines(plan: Plan) -> list[str]:
    """What a plan says that few do, in words: chunks of a pipeline, states in host memory, the schedule."""
    out = []
    if any(e.training is not None and e.training.vpp > 1 for e in plan.roles):
        out.append("(v: model chunks per pipeline stage, interleaved)")
    for entry in plan.roles:
        if entry.offload:
            out.append(f"{entry.role}: {' and '.join(entry.offload)} in host memory while others run")
    if plan.draft_tokens:
        out.append(f"engines draft {plan.draft_tokens} tokens a step")
    return [*out, *([f"schedule    {schedule_text(plan)}"] if plan.schedule != "sync" else [])]


def schedule_text(plan: Plan) -> str:
    """What a schedule other than sync means for the samples that are trained on."""
    if plan.schedule == "one-step-off":
        text = "one-step-off: trains on the samples of the step before while the next ones are generated"
    else:
        text = f"async: {plan.steps_in_flight} step(s) of samples in flight, so samples are up to that many steps old"
    return text + ("; new weights reach the engines while they generate" if plan.in_flight_updates else "")


def memory_notes(timeline: Timeline) -> list[str]:
    """What each pool holds at full length throughout, and which leave less free than the job's headroom."""
    return [*(full_length_text(name, peak) for name, peak in timeline.memory.items() if peak.full_length_bytes)] + [
        f"pool {name} leaves {gib(peak.capacity_bytes - peak.used_bytes)} GiB of {gib(peak.capacity_bytes)} free, less "
        f"than the headroom of {gib(peak.capacity_bytes - peak.usable_bytes)}: an allocator's fragments may end the run"
        for name, peak in timeline.memory.items()
        if peak.usable_bytes is not None and peak.usable_bytes < peak.used_bytes <= peak.capacity_bytes
    ]


def full_length_text(name: str, peak: PoolMemory) -> str:
    """What happens on a pool if every sample is as long as it may be: it fits, or it does not and how rarely so."""
    most = peak.full_length_bytes or peak.used_bytes
    text = f"pool {name} at full length throughout: {gib(most)} of {gib(peak.capacity_bytes)} GiB"
    if most <= peak.capacity_bytes:
        return f"{text}, fits"
    rare = peak.one_in_exceeds
    often = "" if rare is None else f"; 1 micro-batch in {rare:,}{' or fewer' if rare >= RAREST else ''} is too long"
    return f"{text}, out of memory{often}"


def speed_lines(timeline: Timeline) -> list[str]:
    """Iteration time, throughput, interval, and the provenance of the numbers; shares under half a percent go."""
    shares = [f"{percent(share)} {name}" for name, share in timeline.basis.items() if share >= 0.005]
    low, high = (_three_digits(seconds) for seconds in interval_s(timeline))
    return [
        f"iteration   {timeline.iteration_s:,.2f} s, {timeline.tokens_per_s:,.0f} tokens/s, "
        f"{timeline.tokens_per_s / timeline.num_gpus:,.0f} per GPU",
        f"interval    {low} to {high} s in 9 of 10 runs, from {interval_source(timeline)}",
        f"provenance  {', '.join(shares)}{_weakest_call(timeline)}",
        *[
            f"release     not profiled: the nearest stands in, and by {name} it would be {_three_digits(seconds)} s; "
            "the interval holds both"
            for name, seconds in timeline.releases.items()
        ],
    ]


def show_carrying_constants(plan: Plan, facts: Facts) -> None:
    """Print the fitted constants that carry much of the iteration each; nothing where none does."""
    named = [f"{c.name} of {c.owner} ({percent(c.share)})" for c in carrying_constants(facts, plan)]
    if named:
        say(f"leans on    {', '.join(named)}: fitted on runs of others")


def carrying_documents(plan: Plan, facts: Facts) -> list[dict[str, Any]]:
    """The same for ``--json``."""
    return [{"constant": c.name, "of": c.owner, "share": c.share} for c in carrying_constants(facts, plan)]


def interval_s(timeline: Timeline) -> tuple[float, float]:
    """Between which times a measured iteration lies nine times in ten."""
    low, high = interval(timeline.cluster, timeline.by_rule)
    if timeline.log_deviation is not None:
        half = NINETY * timeline.log_deviation
        low, high = max(low, math.exp(-half)), min(high, math.exp(half))
    others = [seconds / timeline.iteration_s for seconds in timeline.releases.values()]
    low, high = low * min([1.0, *others]), high * max([1.0, *others])
    return low * timeline.iteration_s, high * timeline.iteration_s


def interval_source(timeline: Timeline) -> str:
    """What an interval rests on: a calibration, where it leaves less open than errors against published runs."""
    low, _ = interval(timeline.cluster, timeline.by_rule)
    calibrated = timeline.log_deviation is not None and math.exp(-NINETY * timeline.log_deviation) > low
    if calibrated:
        return "what the calibration leaves open"
    wider = "; wider for layers that no table holds" if timeline.by_rule else ""
    return f"errors against published runs (docs/accuracy.md){wider}"


def _three_digits(seconds: float) -> str:
    """Three digits at least: an interval that is itself an estimate carries no more."""
    return f"{seconds:,.{max(0, 2 - math.floor(math.log10(seconds)))}f}"


def _weakest_call(timeline: Timeline) -> str:
    """The call with the most seconds that rest on a rule or an assumption alone: what to measure first."""
    weak = [kind for kind in ("analytic", "assumed") if timeline.basis.get(kind, 0.0) >= 0.0005]
    seconds = {
        span.call: span.duration_s * sum(span.basis.get(kind, 0.0) for kind in weak)
        for span in timeline.spans
        if span.critical
    }
    worst = max(seconds, key=lambda call: seconds[call], default="")
    if not worst or seconds[worst] < 0.05 * timeline.iteration_s:
        return ""
    return f" (most of the {' and '.join(weak)}: {worst}, {seconds[worst]:,.1f} s)"


def timeline_document(timeline: Timeline) -> dict[str, Any]:
    """The parts of a timeline that every ``--json`` answer carries."""
    record = timeline.model_dump(mode="json")
    low_s, high_s = interval_s(timeline)
    return {
        "interval_s": {"low": low_s, "high": high_s, "coverage": COVERAGE},
        "tokens_per_s": timeline.tokens_per_s,
        "num_gpus": timeline.num_gpus,
        "stages": record["stages"],
        "memory": record["memory"],
        "basis": record["basis"],
    }
