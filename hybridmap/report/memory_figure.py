"""GPU memory over an iteration by role: what each keeps, and what the call that runs needs on top."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.report.colors import LINE, role_color
from hybridmap.text.fit import RESIDENT, memory_rows
from profiles.units import GIB

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Plan, Pool
    from simulator.plan.timeline import PoolMemory, Span, Timeline

Figure = dict[str, Any]


# Long by the parts of a figure, drawn in turn.
def memory_over_time(plan: Plan, pool: Pool, timeline: Timeline, facts: Facts) -> Figure:
    """The fullest GPU of a pool through the iteration, GiB, against what a plan may use and what a process sees."""
    from hybridmap.report.figures import LEGEND, MARGIN, text

    steps = _steps(timeline, pool)
    rows = memory_rows(plan, pool, facts)
    kept: dict[str, float] = {}
    needs: dict[tuple[str, str], float] = {}
    for row in rows:
        size = sum(row["classes"].values()) / GIB
        role = row["role"] or "reserve"
        if row["when"] == RESIDENT:
            kept[role] = kept.get(role, 0.0) + size
        else:
            needs[role, row["when"]] = size
    data = [_bars(text(role), role, steps, [size] * len(steps), "") for role, size in kept.items()]
    for role in dict.fromkeys(role for role, _ in needs):
        sizes = [needs.get((role, call), 0.0) for _, _, call in steps]
        if any(sizes):
            name = text(role) if role not in kept else f"{text(role)}, while it runs"
            data.append(_bars(name, role, steps, sizes, "/") | {"showlegend": role not in kept})
    whole = max((end for _, end, _ in steps), default=timeline.iteration_s)
    data += [_limit(name, size, dash, whole) for name, size, dash in _limits(timeline.memory[pool.name])]
    layout = {
        "barmode": "stack",
        "bargap": 0,
        "height": 380,
        "margin": MARGIN,
        "xaxis": {"title": {"text": "seconds of the iteration"}, "range": [0, whole]},
        "yaxis": {
            "title": {"text": f"GiB of pool {text(pool.name)}'s fullest GPU"},
            "rangemode": "tozero",
            "automargin": True,
        },
        "legend": LEGEND,
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}


def _limits(peak: PoolMemory) -> list[tuple[str, float, str]]:
    """Name, bytes and dash of the lines above the bars."""
    lines: list[tuple[str, float, str]] = [("a process sees", peak.capacity_bytes, "solid")]
    if peak.usable_bytes is not None and peak.usable_bytes < peak.capacity_bytes:
        lines.append(("a plan may use", peak.usable_bytes, "dash"))
    return lines


def _limit(name: str, size: float, dash: str, whole: float) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{name}: {size / GIB:.1f} GiB",
        "x": [0, whole],
        "y": [size / GIB] * 2,
        "line": {"color": LINE, "dash": dash, "width": 2},
        "hoverinfo": "skip",
    }


def _steps(timeline: Timeline, pool: Pool) -> list[tuple[float, float, str]]:
    """``(start, end, call)`` of a pool one after the other, waits included, where the call is ``""``."""
    out: list[tuple[float, float, str]] = []
    now = 0.0
    spans: list[Span] = sorted((s for s in timeline.spans if s.pool == pool.name and s.duration_s > 0), key=_start)
    for span in spans:
        if span.start_s > now:
            out.append((now, span.start_s, ""))
        out.append((max(span.start_s, now), span.end_s, span.call))
        now = max(now, span.end_s)
    if timeline.iteration_s > now:
        out.append((now, timeline.iteration_s, ""))
    return out


def _start(span: Span) -> float:
    return span.start_s


def _bars(name: str, role: str, steps: list[tuple[float, float, str]], sizes: list[float], pattern: str) -> Figure:
    return {
        "type": "bar",
        "name": name,
        "x": [(start + end) / 2 for start, end, _ in steps],
        "width": [end - start for start, end, _ in steps],
        "y": sizes,
        "marker": {
            "color": role_color(role),
            "line": {"width": 0},
            "pattern": {"shape": pattern, "fillmode": "overlay", "size": 6, "solidity": 0.25},
        },
        "customdata": [call or "waiting" for _, _, call in steps],
        "hovertemplate": f"{name}: %{{y:.1f}} GiB<extra>%{{customdata}}</extra>",
    }
