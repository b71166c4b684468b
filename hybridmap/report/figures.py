"""The charts of a report as Plotly figures: plain dictionaries of data and layout, no colour of text or ground.

The page gives both in its own colours, for light and for dark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.report import colors
from hybridmap.report.side_by_side import short_name
from simulator.plan.dataflow import STAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridmap.answers.what_if import CaseRecord, WhatIfFile
    from hybridmap.files.frontier import PointRecord
    from hybridmap.report.content import Sensitivity, Shown
    from simulator.plan.timeline import Timeline

Figure = dict[str, Any]

LEGEND = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"}
MARGIN = {"l": 10, "r": 10, "t": 34, "b": 45}


def text(value: str) -> str:
    """Text for a label: Plotly reads a few HTML tags in labels, and names may hold anything."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


FAMILIES = {
    "compute": "arithmetic",
    "memory": "memory bandwidth",
    "nvlink": "NVLink",
    "network": "network",
    "host": "host time",
    "response": "response length",
}
"""Families of prices in words that a phone has room for."""


def stages(shown: Sequence[Shown], measured: Timeline | None) -> Figure:
    """Seconds of each stage along the critical path, one bar a plan."""
    rows = [(short_name(each, i), each.timeline) for i, each in enumerate(shown)]
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
            "marker": {"color": colors.STAGES[stage]},
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
            "line": {"shape": "hv", "color": colors.LINE},
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
            "marker": {"size": 14, "symbol": "star", "color": colors.MARK},
            "hovertemplate": "this plan: %{x} GPUs, %{y:,.2f} s<extra></extra>",
        },
    ]
    return {"data": data, "layout": _axes("GPUs", "seconds per iteration")}


def sensitivity(found: Sequence[Sensitivity], iteration_s: float) -> Figure:
    """How far the iteration moves when one family of prices is off."""
    rows = list(reversed(found))
    names = [f"{FAMILIES[s.family]} ±{100 * s.error:.0f} %" for s in rows]
    sides = (
        ("faster", [s.faster_s for s in rows], colors.FASTER),
        ("slower", [s.slower_s for s in rows], colors.SLOWER),
    )
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
        for kind, color in colors.EVIDENCE.items()
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
