"""The two-lane plot: for each pool what was predicted above what was measured, as one HTML file."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from hybridmap.report.figures import text
from profiles.atomic_write import write_atomically
from simulator.plan.seal import fingerprint

if TYPE_CHECKING:
    from pathlib import Path

    from simulator.plan.timeline import Timeline

COLOURS = {
    "generation": "#4c78a8",
    "transition": "#9d755d",
    "preparation": "#f58518",
    "training": "#54a24b",
    "weight_sync": "#b279a2",
    "other": "#bab0ac",
}


def write_lanes(predicted: Timeline, measured: Timeline, path: Path) -> bool:
    """Write the plot; ``False`` where plotly is not installed."""
    if importlib.util.find_spec("plotly") is None:
        return False
    figure = lanes(predicted, measured)
    of = fingerprint(predicted.digest_now(), measured.digest_now())
    figure.update_layout(meta={"schema_version": 1, "computed_from": of})
    write_atomically(path, lambda aside: figure.write_html(str(aside), include_plotlyjs=True, full_html=True))
    return True


# Long by the parts of a figure, drawn in turn.
def lanes(predicted: Timeline, measured: Timeline) -> Any:
    """A plotly figure: lanes ``A predicted``, ``A measured``, ...; one bar a call, coloured by stage."""
    import plotly.graph_objects as go

    figure = go.Figure()
    seen: set[str] = set()
    for which, timeline in (("predicted", predicted), ("measured", measured)):
        for span in timeline.spans:
            call, lane = text(span.call), f"{text(span.pool)} {which}"
            figure.add_bar(
                y=[lane],
                x=[1e3 * span.duration_s],
                base=[1e3 * span.start_s],
                orientation="h",
                marker_color=COLOURS[span.stage],
                name=span.stage,
                legendgroup=span.stage,
                showlegend=span.stage not in seen,
                text=call,
                textposition="inside",
                insidetextanchor="start",
                hovertemplate=f"{call} ({text(span.role)})<br>%{{base:.2f}} + %{{x:.2f}} ms<extra>{which}</extra>",
            )
            seen.add(span.stage)
    order = sorted(
        {f"{text(span.pool)} {which}" for which, t in _both(predicted, measured) for span in t.spans}, reverse=True
    )
    figure.update_layout(
        barmode="overlay",
        title="One iteration, predicted and measured",
        xaxis_title="milliseconds",
        yaxis={"categoryorder": "array", "categoryarray": _lane_order(order)},
        template="plotly_white",
    )
    return figure


def _both(predicted: Timeline, measured: Timeline) -> tuple[tuple[str, Timeline], ...]:
    return (("predicted", predicted), ("measured", measured))


def _lane_order(lanes_: list[str]) -> list[str]:
    """Pools from top to bottom, each predicted above measured (plotly draws the first category at the bottom)."""
    return sorted(lanes_, key=lambda lane: (lane.rsplit(" ", 1)[0], lane.endswith("measured")), reverse=True)
