"""The chart of an iteration's calls over its seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hybridmap.report import colors
from hybridmap.report.figures import LEGEND, MARGIN, text
from simulator.plan.dataflow import STAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridmap.report.figures import Figure
    from simulator.plan.dataflow import Stage
    from simulator.plan.timeline import Span, Timeline

SHORT = {
    "generate_sequences": "generate",
    "compute_ref_log_prob": "log-prob",
    "compute_log_prob": "log-prob",
    "compute_values": "values",
    "compute_reward": "reward",
    "compute_cost": "cost",
    "compute_advantage": "advantage",
    "update_actor": "update",
    "update_critic": "update",
}
"""What a block says where its row names the role; any other call by its own name."""

LEAST_ROW = 1e-3
"""Share of the iteration that a row must be busy for."""


def gantt(timeline: Timeline, measured: Timeline | None = None) -> Figure:
    """Calls over time, one row for each role of a pool; a run's below each of them. Rows of next to nothing go."""
    rows = [(timeline, "")] if measured is None else [(timeline, " predicted"), (measured, " measured")]
    busy: dict[tuple[str, str], float] = {}
    for each, _ in rows:
        for span in each.spans:
            key = (span.pool, span.role)
            busy[key] = max(busy.get(key, 0.0), span.duration_s / each.iteration_s if each.iteration_s else 0.0)
    kept = {key for key, share in busy.items() if share >= LEAST_ROW}
    there = [
        (span, suffix)
        for each, suffix in rows
        for span in each.spans
        if (span.pool, span.role) in kept and span.duration_s > 0
    ]
    data = [_bars(s, found, there) for s in STAGES if (found := [pair for pair in there if pair[0].stage == s])]
    names = [_row(*key, suffix) for key in busy if key in kept for _, suffix in rows]
    layout = {
        "barmode": "overlay",
        "height": 130 + 34 * len(names),
        "margin": MARGIN,
        "xaxis": {"title": {"text": "seconds"}, "rangemode": "tozero", "range": [0, _room(timeline, measured)]},
        "yaxis": {"automargin": True, "categoryorder": "array", "categoryarray": names[::-1]},
        "legend": LEGEND,
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}


def _room(timeline: Timeline, measured: Timeline | None) -> float:
    """The time axis ends behind the last call, where its name has room."""
    return 1.12 * max(timeline.iteration_s, measured.iteration_s if measured is not None else 0.0)


def _label(span: Span, there: Sequence[tuple[Span, str]], suffix: str) -> str:
    """The name of a block; none for a short one whose name another block of its row would cover."""
    row = [s for s, other in there if (s.pool, s.role, other) == (span.pool, span.role, suffix) and s is not span]
    room = min((s.start_s - span.end_s for s in row if s.start_s >= span.end_s), default=math.inf)
    longest = max(s.end_s for s, _ in there)
    if span.duration_s < 0.04 * longest and room < 0.1 * longest:
        return ""
    return text(SHORT.get(span.call, span.call.replace("_", " ")))


def _row(pool: str, role: str, suffix: str = "") -> str:
    """``A actor``: the pool's name and whose calls they are."""
    return f"{text(pool)} {text(role)}{suffix}" if pool != role else f"{text(pool)}{suffix}"


def _bars(stage: Stage, spans: Sequence[tuple[Span, str]], there: Sequence[tuple[Span, str]]) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": stage.replace("_", " "),
        "marker": {"color": colors.STAGES[stage]},
        "y": [_row(span.pool, span.role, suffix) for span, suffix in spans],
        "x": [span.duration_s for span, _ in spans],
        "base": [span.start_s for span, _ in spans],
        "hovertext": [_span_text(span) for span, _ in spans],
        "hoverinfo": "text",
        "text": [_label(span, there, suffix) for span, suffix in spans],
        "textposition": "auto",
        "insidetextanchor": "middle",
        "outsidetextfont": {"color": colors.LINE},  # read on light and dark ground
        "cliponaxis": False,
        "constraintext": "none",
    }


def _span_text(span: Span) -> str:
    basis = ", ".join(f"{100 * share:.0f} % {text(name)}" for name, share in span.basis.items() if share >= 0.005)
    critical = "<br>on the critical path" if span.critical else ""
    return (
        f"<b>{text(span.call)}</b> ({text(span.role)})<br>{span.start_s:,.2f} to {span.end_s:,.2f} s, "
        f"{span.duration_s:,.2f} s<br>compute {span.compute_s:,.2f} s, communication {span.comm_s:,.2f} s"
        f"<br>{basis}{critical}"
    )
