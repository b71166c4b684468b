"""The charts of a report as Plotly figures: plain dictionaries of data and layout, no colour of text or ground.

The page gives both in its own colours, for light and for dark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.text.fit import CLASSES
from profiles.units import GIB
from simulator.plan.dataflow import STAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridmap.answers.what_if import CaseRecord, WhatIfFile
    from hybridmap.files.frontier import PointRecord
    from hybridmap.report.content import Sensitivity, Shown
    from simulator.plan.timeline import Span, Timeline

Figure = dict[str, Any]

STAGE_COLORS = {
    "generation": "#2f7ed8",
    "transition": "#8e5ea2",
    "preparation": "#e8a33d",
    "training": "#c0504d",
    "weight_sync": "#7a6a9e",
    "other": "#8a8f98",
}
CLASS_COLORS = (
    "#4c78a8",
    "#9ecae9",
    "#f58518",
    "#ffbf79",
    "#54a24b",
    "#88d27a",
    "#b79a20",
    "#e45756",
    "#439894",
    "#83bcb6",
    "#79706e",
    "#d67195",
    "#b279a2",
)


LEGEND = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"}
MARGIN = {"l": 10, "r": 10, "t": 60, "b": 45}


def text(value: str) -> str:
    """Text for a label: Plotly reads a few HTML tags in labels, and names may hold anything."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def gantt(timeline: Timeline, measured: Timeline | None = None) -> Figure:
    """Calls over time, one row a pool; a run's below each of them."""
    rows = [(timeline, "")] if measured is None else [(timeline, " predicted"), (measured, " measured")]
    data = []
    for stage in STAGES:
        spans = [(span, suffix) for each, suffix in rows for span in each.spans if span.stage == stage]
        spans = [(span, suffix) for span, suffix in spans if span.duration_s > 0]
        if spans:
            data.append(_bars(stage, spans))
    names = _row_names(rows)
    layout = {
        "barmode": "overlay",
        "height": 150 + 46 * len(names),
        "margin": MARGIN,
        "xaxis": {"title": {"text": "seconds"}, "rangemode": "tozero"},
        "yaxis": {"automargin": True, "categoryorder": "array", "categoryarray": names[::-1]},
        "legend": LEGEND,
        "hovermode": "closest",
        "uniformtext": {"minsize": 9, "mode": "hide"},
    }
    return {"data": data, "layout": layout}


def _row_names(rows: Sequence[tuple[Timeline, str]]) -> list[str]:
    pools = dict.fromkeys(span.pool for timeline, _ in rows for span in timeline.spans if span.duration_s > 0)
    return [f"{_pool(pool)}{suffix}" for pool in pools for _, suffix in rows]


def _pool(name: str) -> str:
    return name if name == "controller" else f"pool {text(name)}"


def _bars(stage: str, spans: Sequence[tuple[Span, str]]) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": stage.replace("_", " "),
        "marker": {"color": STAGE_COLORS[stage]},
        "y": [f"{_pool(span.pool)}{suffix}" for span, suffix in spans],
        "x": [span.duration_s for span, _ in spans],
        "base": [span.start_s for span, _ in spans],
        "hovertext": [_span_text(span) for span, _ in spans],
        "hoverinfo": "text",
        "text": [text(span.call) for span, _ in spans],
        "textposition": "inside",
        "insidetextanchor": "middle",
    }


def _span_text(span: Span) -> str:
    basis = ", ".join(f"{share:.0%} {text(name)}" for name, share in span.basis.items() if share >= 0.005)
    critical = "<br>on the critical path" if span.critical else ""
    return (
        f"<b>{text(span.call)}</b> ({text(span.role)})<br>{span.start_s:,.2f} to {span.end_s:,.2f} s, "
        f"{span.duration_s:,.2f} s<br>compute {span.compute_s:,.2f} s, communication {span.comm_s:,.2f} s"
        f"<br>{basis}{critical}"
    )


def memory(timeline: Timeline) -> Figure:
    """Peak memory of each pool's fullest GPU by class, against what the GPU has."""
    pools = list(timeline.memory)
    there = dict.fromkeys(name for pool in pools for name in timeline.memory[pool].classes)
    names = [n for n in CLASSES if n in there] + [n for n in there if n not in CLASSES]
    labels = [_pool(pool) for pool in pools]
    data: list[Figure] = []
    for name in names:
        place = CLASSES.index(name) if name in CLASSES else len(CLASSES)  # the same colour in every plan
        sizes = [timeline.memory[pool].classes.get(name, 0) / GIB for pool in pools]
        data.append(
            {
                "type": "bar",
                "name": text(name),
                "x": labels,
                "y": sizes,
                "width": 0.5,
                "marker": {"color": CLASS_COLORS[place]},
                "hovertemplate": f"{text(name)}: %{{y:.1f}} GiB<extra>%{{x}}</extra>",
            }
        )
    capacity = [timeline.memory[pool].capacity_bytes / GIB for pool in pools]
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "capacity",
            "x": labels,
            "y": capacity,
            "marker": {"symbol": "line-ew", "size": 60, "line": {"width": 3, "color": "#d62728"}},
            "hovertemplate": "capacity %{y:.1f} GiB<extra>%{x}</extra>",
        }
    )
    layout = {
        "barmode": "stack",
        "height": 420,
        "margin": MARGIN,
        "yaxis": {"title": {"text": "GiB per GPU"}, "automargin": True, "rangemode": "tozero"},
        "legend": LEGEND,
    }
    return {"data": data, "layout": layout}


def stages(shown: Sequence[Shown], measured: Timeline | None) -> Figure:
    """Seconds of each stage along the critical path, one bar a plan."""
    rows = [(_short_name(each, i), each.timeline) for i, each in enumerate(shown)]
    if measured is not None:
        rows.insert(1, ("measured", measured))
    names = [text(f"{name}, {timeline.iteration_s:,.1f} s") for name, timeline in rows]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": stage.replace("_", " "),
            "y": names,
            "x": [timeline.stages.get(stage, 0.0) for _, timeline in rows],
            "marker": {"color": STAGE_COLORS[stage]},
            "hovertemplate": f"{stage.replace('_', ' ')}: %{{x:,.2f}} s<extra></extra>",
        }
        for stage in STAGES
        if any(timeline.stages.get(stage, 0.0) > 0 for _, timeline in rows)
    ]
    layout = {
        "barmode": "stack",
        "height": 160 + 40 * len(rows),
        "margin": MARGIN,
        "xaxis": {"title": {"text": "seconds"}},
        "legend": LEGEND,
        "yaxis": {"automargin": True, "autorange": "reversed"},
    }
    return {"data": data, "layout": layout}


def _short_name(shown: Shown, place: int) -> str:
    """``best``, the name of a placement that has one, or its place among the runners-up."""
    named = shown.name.split(" ")[0]
    return "best" if place == 0 else named if not named.startswith("{") else f"runner-up {place}"


def frontier(points: Sequence[PointRecord], num_gpus: int, iteration_s: float) -> Figure:
    """Iteration time against GPUs, and where the plan is."""
    hover = [
        f"{p.num_gpus:,} GPUs: {p.iteration_s:,.2f} s, {p.tokens_per_s:,.0f} tokens/s<br>{text(p.plan.placement)}"
        for p in points
    ]
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "fastest plan on at most so many GPUs",
            "line": {"shape": "hv", "color": "#2f7ed8"},
            "marker": {"size": 9},
            "x": [p.num_gpus for p in points],
            "y": [p.iteration_s for p in points],
            "hovertext": hover,
            "hoverinfo": "text",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "this plan",
            "x": [num_gpus],
            "y": [iteration_s],
            "marker": {"size": 14, "symbol": "star", "color": "#c0504d"},
            "hovertemplate": "this plan: %{x} GPUs, %{y:,.2f} s<extra></extra>",
        },
    ]
    return {"data": data, "layout": _axes("GPUs", "seconds per iteration")}


def sensitivity(found: Sequence[Sensitivity], iteration_s: float) -> Figure:
    """How far the iteration moves when one family of prices is off."""
    rows = list(reversed(found))
    names = [f"{s.meaning} ±{s.error:.0%}" for s in rows]
    sides = (("faster", [s.faster_s for s in rows], "#54a24b"), ("slower", [s.slower_s for s in rows], "#c0504d"))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": f"if {side}",
            "y": names,
            "base": iteration_s,
            "x": [value - iteration_s for value in values],
            "marker": {"color": color},
            "customdata": values,
            "hovertemplate": "%{customdata:,.2f} s<extra></extra>",
        }
        for side, values, color in sides
    ]
    layout = _axes("seconds per iteration", "") | {"barmode": "overlay", "height": 150 + 40 * len(rows)}
    return {"data": data, "layout": layout}


def what_if(record: WhatIfFile) -> Figure:
    """Iteration time by setting: a line over the values of the last one for each combination of the others."""
    *others, last = record.settings
    data = []
    groups: dict[str, list[CaseRecord]] = {}
    for case in record.cases:
        groups.setdefault(", ".join(f"{key}={case.settings[key]}" for key in others), []).append(case)
    for name, cases in groups.items():
        there = [case for case in cases if case.iteration_s is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": text(name or "best plan"),
                "x": [_axis_value(case.settings[last]) for case in there],
                "y": [case.iteration_s for case in there],
                "hovertext": [_case_text(case) for case in there],
                "hoverinfo": "text",
            }
        )
    layout = _axes(text(last), "seconds per iteration")
    if any(isinstance(_axis_value(case.settings[last]), str) for case in record.cases):
        layout["xaxis"]["type"] = "category"
    return {"data": data, "layout": layout}


def _case_text(case: CaseRecord) -> str:
    return f"{case.iteration_s:,.2f} s on {case.num_gpus:,} GPUs<br>{text(case.placement or '')}"


def _axis_value(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else text(str(value))


def provenance(shown: Shown) -> Figure:
    """Seconds of each call on the critical path by kind of evidence."""
    spans = [span for span in shown.timeline.spans if span.critical and span.duration_s > 0]
    colors = {
        "measured": "#54a24b",
        "published": "#4c78a8",
        "interpolated": "#e8a33d",
        "fitted": "#b279a2",
        "analytic": "#c0504d",
        "assumed": "#7f7f7f",
    }
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": kind,
            "marker": {"color": color},
            "y": [text(span.call) for span in spans],
            "x": [span.duration_s * span.basis.get(kind, 0.0) for span in spans],
            "hovertemplate": f"{kind}: %{{x:,.2f}} s<extra>%{{y}}</extra>",
        }
        for kind, color in colors.items()
    ]
    layout = _axes("seconds on the critical path", "") | {
        "barmode": "stack",
        "height": 160 + 34 * len(spans),
        "yaxis": {"automargin": True, "autorange": "reversed"},
    }
    return {"data": data, "layout": layout}


def _axes(x: str, y: str) -> Figure:
    return {
        "height": 380,
        "margin": MARGIN,
        "hovermode": "closest",
        "xaxis": {"title": {"text": x}, "automargin": True},
        "yaxis": {"title": {"text": y}, "automargin": True},
        "legend": LEGEND,
    }
