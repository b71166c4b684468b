"""The right-hand side of the page: figures, cluster, layouts and charts of the plan, and the plans that were pinned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nicegui import ui

from hybridmap.report import figures
from hybridmap.report.cluster_svg import cluster_svg
from hybridmap.report.elements import table
from hybridmap.report.gantt import gantt
from hybridmap.report.memory_figure import memory_over_time
from hybridmap.text.notation import (
    about,
    generation_text,
    gpus_text,
    job_title,
    memory_text,
    percent,
    placement_title,
    scoring_text,
    training_text,
)
from hybridmap.text.plan import interval_s

if TYPE_CHECKING:
    from hybridmap.files.frontier import PointRecord
    from hybridmap.job.job import Job
    from mapper.result import Result

PLAIN = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "autosize": True}
INK = """
.js-plotly-plot .xtick text, .js-plotly-plot .ytick text, .js-plotly-plot .legendtext, .js-plotly-plot .xtitle,
.js-plotly-plot .ytitle, .js-plotly-plot .bartext-outside { fill: #1b1f24 !important; }
.body--dark .js-plotly-plot .xtick text, .body--dark .js-plotly-plot .ytick text,
.body--dark .js-plotly-plot .legendtext, .body--dark .js-plotly-plot .xtitle,
.body--dark .js-plotly-plot .ytitle, .body--dark .js-plotly-plot .bartext-outside { fill: #e6e9ec !important; }
.body--dark .js-plotly-plot .gridlayer path { stroke: #3a4149 !important; }
.cluster { display: flex; flex-wrap: wrap; gap: 6px; } .cluster svg { max-width: 100%; height: auto; }
.cluster .kind { flex: 0 0 100%; } .cluster .node-name { fill: currentColor; font-size: 9px; }
.cluster .pool-name, .cluster .rank { font-size: 9px; text-anchor: middle; }
.layouts table { border-collapse: collapse; width: 100%; font-size: .85rem; }
.layouts th, .layouts td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #8a929b66; }
@media (max-width: 640px) {
  .layouts thead, .layouts .none { display: none; }
  .layouts table, .layouts tbody, .layouts tr, .layouts td { display: block; }
  .layouts tr { border-bottom: 1px solid #8a929b66; padding: .4rem 0; }
  .layouts td { display: grid; grid-template-columns: 7rem 1fr; border: 0; padding: .05rem 0; }
  .layouts td::before { content: attr(data-label); }
  .layouts td:first-child { font-weight: 600; }
}
.soft { color: #59636e; } .body--dark .soft { color: #a3adb8; }
.wrong { color: #b3261e; } .body--dark .wrong { color: #ffb4ab; }
"""
"""Colours of text on light and dark ground, of charts too; each 4.5 to 1 at least."""


LAYOUTS = ("role", "pool", "training", "generation", "scoring", "memory")


class View:
    """The right-hand side: made once, and given new content with every plan, so that charts move and do not flicker."""

    def __init__(self) -> None:
        with ui.column().classes("w-full") as self.box:
            with ui.row().classes("gap-8"):
                self.cards = {what: Card(what) for what in ("iteration", "tokens/s", "GPUs", "proof")}
            self.cluster = ui.html("", sanitize=False).classes("w-full")
            self.layouts = ui.html("", sanitize=False).classes("w-full layouts")
            self.gantt, self.memory = _chart(), _chart()
            fit = f"() => fitLabels(document.getElementById('{self.gantt.html_id}'))"
            self.gantt.on("plotly_afterplot", js_handler=fit)
            self.others = ui.label()
            ui.label("More or fewer GPUs").classes("text-lg font-bold")
            self.frontier = _chart()

    def set_visibility(self, visible: bool) -> None:
        """Hide all of it while there is no plan."""
        self.box.set_visibility(visible)

    def update(self, job: Job, result: Result) -> None:
        """Show a plan."""
        timeline, facts = result.timeline, job.facts()
        low, high = interval_s(timeline)
        self.cards["iteration"].set(f"{timeline.iteration_s:,.2f} s", f"90 %: {about(low)} to {about(high)} s")
        per_gpu = timeline.tokens_per_s / timeline.num_gpus
        self.cards["tokens/s"].set(f"{timeline.tokens_per_s:,.0f}", f"{per_gpu:,.0f} per GPU")
        self.cards["GPUs"].set(f"{timeline.num_gpus:,}", f"of {facts.num_gpus:,}")
        self.cards["proof"].set(result.status, f"gap {percent(result.gap)}")
        self.cluster.set_content(cluster_svg(result.plan, facts))
        self.layouts.set_content(table(LAYOUTS, _rows(result)))
        self.gantt.update_figure(_dressed(gantt(timeline)))
        fullest = max(result.plan.pools, key=lambda pool: timeline.memory[pool.name].used_bytes)
        self.memory.update_figure(_dressed(memory_over_time(result.plan, fullest, timeline, facts)))
        self.others.set_text("")

    def update_runners_up(self, result: Result) -> None:
        """Show the best plans of other placements."""
        rows = [f"{r.placement}: {r.iteration_s:,.2f} s" for r in result.runners_up]
        self.others.set_text(f"Runners-up: {'; '.join(rows)}" if rows else "")

    def update_frontier(self, points: tuple[PointRecord, ...], result: Result) -> None:
        """Show what more or fewer GPUs would do, and where the plan is."""
        figure = figures.frontier(points, result.plan.num_gpus, result.iteration_s)
        self.frontier.update_figure(_dressed(figure))


class Pins:
    """Plans that were kept to compare, each with its job, one row each; nothing where none was."""

    COLUMNS = ("job", "iteration", "90 %", "tokens/s per GPU", "GPUs", "placement")

    def __init__(self) -> None:
        columns = [{"name": name, "label": name, "field": name, "align": "left"} for name in self.COLUMNS]
        with ui.column().classes("w-full") as self.box:
            ui.label("Pinned plans").classes("text-lg font-bold")
            self.table = ui.table(columns=columns, rows=[], row_key="key").classes("w-full").props("flat dense grid")
            ui.button("Unpin all", on_click=self.clear).props("flat dense")
        self.box.set_visibility(False)

    def add(self, job: Job, result: Result) -> None:
        """Keep a plan; one that is there already is not added twice."""
        timeline = result.timeline
        low, high = interval_s(timeline)
        texts = (
            job_title(job.facts()),
            f"{timeline.iteration_s:,.2f} s",
            f"{about(low)} to {about(high)} s",
            f"{timeline.tokens_per_s / timeline.num_gpus:,.0f}",
            f"{timeline.num_gpus:,}",
            placement_title(result.plan),
        )
        row = dict(zip(self.COLUMNS, texts, strict=True)) | {"key": " ".join(texts)}
        if row["key"] not in [each["key"] for each in self.table.rows]:
            self.table.rows = [*self.table.rows, row]
        self.box.set_visibility(True)

    def clear(self) -> None:
        """Forget all of them."""
        self.table.rows = []
        self.box.set_visibility(False)


class Card:
    """One figure with its name above and its detail below."""

    def __init__(self, what: str) -> None:
        with ui.column().classes("gap-0"):
            ui.label(what).classes("text-sm soft")
            self.value = ui.label().classes("text-xl font-bold")
            self.more = ui.label().classes("text-sm soft")

    def set(self, value: str, more: str) -> None:
        """Show a value and its detail."""
        self.value.set_text(value)
        self.more.set_text(more)


def _chart() -> ui.plotly:
    """An empty chart as wide as its column."""
    return ui.plotly(_dressed({"data": [], "layout": {"height": 200}})).classes("w-full")


def _dressed(figure: dict[str, Any]) -> dict[str, Any]:
    config = {"displayModeBar": False, "responsive": True}
    return {"data": figure["data"], "layout": {**figure["layout"], **PLAIN}, "config": config}


def _rows(result: Result) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for entry in result.plan.roles:
        pool = result.plan.pool_of(entry.role)
        layouts = (training_text(entry.training), generation_text(entry.generation), scoring_text(entry.inference))
        memory = memory_text(result.timeline.memory[pool.name])
        rows.append((entry.role, f"{pool.name}: {gpus_text(pool)}", *layouts, memory))
    return rows
