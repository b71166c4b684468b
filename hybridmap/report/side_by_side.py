"""Plans in columns, and what each stage's time rests on: the tables of a report that compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.text.notation import about, generation_text, gib, percent, scoring_text, training_text
from hybridmap.text.plan import interval_s
from simulator.plan.dataflow import STAGES
from simulator.uncertainty import range_of

if TYPE_CHECKING:
    from hybridmap.report.content import Content, Shown
    from simulator.plan.timeline import Timeline

STAGE_CLUSTERS = {
    "generation": "gen_time_s",
    "preparation": "logprob_time_s",
    "transition": "refit_time_s",
    "weight_sync": "refit_time_s",
    "training": "train_time_s",
}
"""Which published stage times a stage's interval rests on."""

MOST_SHOWN = 5


def side_by_side(content: Content) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: time, interval, stages, memory and layouts, a column each plan; rows that say nothing go."""
    shown = content.shown[:MOST_SHOWN]
    columns = ["", *(short_name(each, i) for i, each in enumerate(shown))]
    rows = [["placement", *(each.plan.placement for each in shown)]]
    best = shown[0].timeline.iteration_s
    rows.append(["iteration", *(f"{each.timeline.iteration_s:,.2f} s" for each in shown)])
    rows.append(["over the best", "", *(_over(each.timeline.iteration_s / best - 1) for each in shown[1:])])
    rows.append(["90 % interval", *(" to ".join(f"{about(s)}" for s in interval_s(e.timeline)) for e in shown)])
    for stage in STAGES:
        if any(each.timeline.stages.get(stage, 0.0) >= 0.05 for each in shown):
            name = stage.replace("_", " ")
            rows.append([name, *(f"{each.timeline.stages.get(stage, 0.0):,.1f} s" for each in shown)])
    rows.append(["tokens/s per GPU", *(f"{e.timeline.tokens_per_s / e.timeline.num_gpus:,.0f}" for e in shown)])
    rows.append(["GPUs", *(f"{each.timeline.num_gpus:,}" for each in shown)])
    rows.append(["fullest GPU", *(f"{gib(max(m.used_bytes for m in e.timeline.memory.values()))} GiB" for e in shown)])
    for role in dict.fromkeys(entry.role for each in shown for entry in each.plan.roles):
        rows.append([role, *(_layouts(each, role) for each in shown)])
    return columns, rows


def short_name(shown: Shown, place: int) -> str:
    """``best``, the name of a placement that has one, or its place among the runners-up."""
    if shown.key.startswith("given"):
        return "other"
    named = shown.name.split(" ")[0]
    return "best" if place == 0 else named if not named.startswith("{") else f"runner-up {place}"


def _over(fraction: float) -> str:
    return f"{'+' if fraction >= 0 else '-'}{percent(abs(fraction))}"


def _layouts(shown: Shown, role: str) -> str:
    entry = next((entry for entry in shown.plan.roles if entry.role == role), None)
    if entry is None:
        return ""
    texts = {
        "train": training_text(entry.training),
        "generate": generation_text(entry.generation),
        "score": scoring_text(entry.inference),
    }
    return "; ".join(f"{name} {text}" for name, text in texts.items() if text != "-")


def stage_rows(timeline: Timeline) -> list[tuple[str, str, str, str]]:
    """Stage, seconds, 90 % interval from published stage times, and what its critical calls rest on."""
    _, kind, *_, family = [*timeline.cluster.split("/"), "", ""][:4]
    out = []
    for stage in STAGES:
        seconds = timeline.stages.get(stage, 0.0)
        if seconds < 0.05:
            continue
        interval = ""
        if stage in STAGE_CLUSTERS:
            spread = range_of(f"stage/{STAGE_CLUSTERS[stage]}/{kind}/{family}")
            interval = f"{about(min(1.0, spread.low) * seconds)} to {about(max(1.0, spread.high) * seconds)} s"
        out.append((stage.replace("_", " "), f"{seconds:,.1f} s", interval, _basis(timeline, stage)))
    return out


def _basis(timeline: Timeline, stage: str) -> str:
    spans = [span for span in timeline.spans if span.stage == stage and span.duration_s > 0]
    whole = sum(span.duration_s for span in spans)
    kinds = dict.fromkeys(kind for span in spans for kind in span.basis)
    shares = (
        {kind: sum(s.duration_s * s.basis.get(kind, 0.0) for s in spans) / whole for kind in kinds} if whole else {}
    )
    told = sorted((kind for kind in shares if shares[kind] >= 0.005), key=lambda kind: -shares[kind])
    return ", ".join(f"{percent(shares[kind])} {kind}" for kind in told)
