"""The page itself: a form on the left, the plan on the right, charts from the report."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nicegui import app, run, ui
from starlette.middleware.trustedhost import TrustedHostMiddleware

from hybridmap.report import figures
from hybridmap.report.cluster_svg import cluster_svg
from hybridmap.report.memory_figure import memory_over_time
from hybridmap.text.notation import (
    generation_text,
    gpus_text,
    job_title,
    memory_text,
    percent,
    scoring_text,
    training_text,
)
from hybridmap.text.plan import interval_s
from hybridmap.ui.answer import answer_of, frontier_of
from hybridmap.ui.form import GOALS, NUMBERS
from profiles.models.catalogue import model_names
from profiles.store import device_names
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridmap.files.frontier import PointRecord
    from hybridmap.job.job import Job
    from hybridmap.ui.form import Form
    from mapper.result import Result

LOOPBACK = ("127.0.0.1", "localhost", "::1")

SETTLE_S = 0.25
"""A change is planned when nothing else was changed for so long."""

PLAIN = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "autosize": True}


class Page:
    """One visitor's page: the form as it stands, and where its answer is shown."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.asked = 0

    def build(self) -> None:
        """Lay out the page and plan the first form."""
        ui.page_title("hybridmap")
        with ui.row().classes("w-full no-wrap items-start gap-6 max-md:flex-wrap"):
            with ui.column().classes("w-72 shrink-0"):
                ui.label("hybridmap").classes("text-2xl font-bold")
                self.fields = ui.column().classes("w-full gap-1")
                self._build_fields()
            with ui.column().classes("grow min-w-0"):
                self.status = ui.label("planning ...").classes("text-sm text-gray-500")
                self.error = ui.label().classes("text-red-700 whitespace-pre-wrap")
                self.title = ui.label().classes("text-lg font-bold")
                self.view = View()
        ui.timer(0.01, self.plan, once=True)

    def _build_fields(self) -> None:
        form = self.form
        with self.fields:
            ui.select(sorted(ALGORITHMS), label="algorithm", value=form.algorithm, on_change=self._algorithm).classes(
                "w-full"
            )
            for role in form.roles:
                optional = role not in ALGORITHMS[form.algorithm].roles
                names = [*([""] if optional else []), *sorted({*model_names(), *filter(None, form.models.values())})]
                ui.select(
                    names,
                    label=f"{role}{' (optional)' if optional else ''}",
                    value=form.models.get(role, ""),
                    with_input=True,
                    on_change=self._model(role),
                ).classes("w-full")
            for key, label in NUMBERS.items():
                self._number(key, label)
            ui.select(list(device_names()), label="GPU", value=form.device, on_change=self._value("device")).classes(
                "w-full"
            )
            self._number("nodes", "nodes")
            ui.select(GOALS, label="objective", value=form.goal, on_change=self._value("goal")).classes("w-full")
            self._number("target_iteration_s", "longest iteration, s (for fewest GPUs)")

    def _number(self, key: str, label: str) -> None:
        # Without limits: the widget would put another number in place of one that cannot be.
        ui.number(label, value=getattr(self.form, key), on_change=self._value(key)).classes("w-full")

    def _value(self, key: str) -> Callable[[Any], Any]:
        async def change(event: Any) -> None:
            value = event.value
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            await self.change(replace(self.form, **{key: value}))

        return change

    def _model(self, role: str) -> Callable[[Any], Any]:
        async def change(event: Any) -> None:
            models = {**self.form.models, role: event.value or ""}
            await self.change(replace(self.form, models={r: m for r, m in models.items() if m}))

        return change

    async def _algorithm(self, event: Any) -> None:
        self.form = self.form.with_algorithm(event.value)
        self.fields.clear()
        self._build_fields()
        await self.change(self.form)

    async def change(self, form: Form) -> None:
        """Take over a form, and plan it unless another follows at once."""
        self.form = form
        self.asked += 1
        mine = self.asked
        await asyncio.sleep(SETTLE_S)
        if mine == self.asked:
            await self.plan()

    async def plan(self) -> None:
        """Search in a thread, show the plan, then the frontier; a newer change makes an older answer worthless."""
        form, mine = self.form, self.asked
        self.status.set_text("planning ...")
        answer = await run.io_bound(answer_of, form)
        if mine != self.asked or answer is None:  # None: the server is being stopped
            return
        title = job_title(answer.job.facts()) if answer.job is not None else ""
        self.title.set_text(title)
        ui.page_title(f"{title} - hybridmap" if title else "hybridmap")
        self.error.set_text(answer.error)
        self.view.set_visibility(answer.result is not None)
        if answer.result is None or answer.job is None:
            self.status.set_text("no plan")
            return
        self.view.update(answer.job, answer.result)
        self.status.set_text(f"planned in {answer.result.seconds:.2f} s")
        points = await run.io_bound(frontier_of, form)
        if mine == self.asked and points:
            self.view.update_frontier(points, answer.result)


class View:
    """The right-hand side: made once, and given new content with every plan, so that charts move and do not flicker."""

    def __init__(self) -> None:
        with ui.column().classes("w-full") as self.box:
            with ui.row().classes("gap-8"):
                self.cards = {what: Card(what) for what in ("iteration", "tokens/s", "GPUs", "proof")}
            self.cluster = ui.html("", sanitize=False).classes("w-full max-w-2xl cluster")
            self.table = ui.table(columns=_columns(), rows=[], row_key="role").classes("w-full").props("flat dense")
            self.gantt, self.memory = _chart(), _chart()
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
        self.cards["iteration"].set(f"{timeline.iteration_s:,.2f} s", f"90 %: {low:,.0f} to {high:,.0f} s")
        per_gpu = timeline.tokens_per_s / timeline.num_gpus
        self.cards["tokens/s"].set(f"{timeline.tokens_per_s:,.0f}", f"{per_gpu:,.0f} per GPU")
        self.cards["GPUs"].set(f"{timeline.num_gpus:,}", f"of {facts.num_gpus:,}")
        self.cards["proof"].set(result.status, f"gap {percent(result.gap)}")
        self.cluster.set_content(cluster_svg(result.plan, facts))
        self.table.rows = _rows(result)
        self.gantt.update_figure(_dressed(figures.gantt(timeline)))
        fullest = max(result.plan.pools, key=lambda pool: timeline.memory[pool.name].used_bytes)
        self.memory.update_figure(_dressed(memory_over_time(result.plan, fullest, timeline, facts)))
        rows = [f"{r.placement}: {r.iteration_s:,.2f} s" for r in result.runners_up]
        self.others.set_text(f"Runners-up: {'; '.join(rows)}" if rows else "")

    def update_frontier(self, points: tuple[PointRecord, ...], result: Result) -> None:
        """Show what more or fewer GPUs would do, and where the plan is."""
        figure = figures.frontier(points, result.plan.num_gpus, result.iteration_s)
        self.frontier.update_figure(_dressed(figure))


class Card:
    """One figure with its name above and its detail below."""

    def __init__(self, what: str) -> None:
        with ui.column().classes("gap-0"):
            ui.label(what).classes("text-sm text-gray-500")
            self.value = ui.label().classes("text-xl font-bold")
            self.more = ui.label().classes("text-sm text-gray-500")

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


def _columns() -> list[dict[str, Any]]:
    names = ("role", "pool", "training", "generation", "scoring", "memory")
    return [{"name": name, "label": name, "field": name, "align": "left"} for name in names]


def _rows(result: Result) -> list[dict[str, str]]:
    rows = []
    for entry in result.plan.roles:
        pool = result.plan.pool_of(entry.role)
        peak = result.timeline.memory[pool.name]
        rows.append(
            {
                "role": entry.role,
                "pool": f"{pool.name}: {gpus_text(pool)}",
                "training": training_text(entry.training),
                "generation": generation_text(entry.generation),
                "scoring": scoring_text(entry.inference),
                "memory": memory_text(peak),
            }
        )
    return rows


def serve(form: Form, host: str, port: int, show_browser: bool) -> None:
    """Run the page until it is stopped."""

    def index() -> None:
        Page(form).build()

    if host in LOOPBACK:  # a page elsewhere whose name is made to point here gets no answer
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "[::1]"])
    ui.page("/")(index)
    ui.run(host=host, port=port, title="hybridmap", reload=False, show=show_browser, favicon=None)
