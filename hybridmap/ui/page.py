"""The page itself: a form on the left, the plan on the right, charts from the report."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from nicegui import app, run, ui
from starlette.middleware.trustedhost import TrustedHostMiddleware

from hybridmap.text.notation import job_title
from hybridmap.ui.answer import answer_of, frontier_of
from hybridmap.ui.downloads import DOWNLOADS
from hybridmap.ui.form import GOALS, NUMBERS
from hybridmap.ui.origin import SameOrigin
from hybridmap.ui.share import MOST_TEXT, form_of_link, form_of_text, link_of
from hybridmap.ui.turns import Turns
from hybridmap.ui.view import INK, Pins, View
from profiles.errors import HybridmapError
from profiles.models.catalogue import model_names
from profiles.store import device_names
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridmap.ui.answer import Answer
    from hybridmap.ui.form import Form

LABELS = (files("hybridmap.report") / "labels.js").read_text(encoding="utf-8")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SETTLE_S = 0.25
"""A change that follows another sooner is planned when nothing else was changed for so long."""

RECONNECT_S = 60.0
"""How long a page whose connection broke keeps its form: a search may hold a busy machine for longer than a ping."""


class Page:
    """One visitor's page: the form as it stands, and where its answer is shown."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.asked, self.changed_s = 0, 0.0
        self.answer: Answer | None = None
        self.plans, self.others = Turns(), Turns()  # the second so that a change need not wait for a frontier

    def build(self) -> None:
        """Lay out the page and plan the first form."""
        ui.page_title("hybridmap")
        ui.add_css(INK)
        ui.add_head_html(f"<script>{LABELS}</script>")
        self.dark = ui.dark_mode(None)  # as the system says, until somebody chooses
        with ui.row().classes("w-full no-wrap items-start gap-6 max-md:flex-wrap"):
            # A phone has one column: who is sent a link came for the answer.
            with ui.column().classes("w-72 shrink-0 max-md:order-last"):
                with ui.row().classes("w-full items-center justify-between"):
                    ui.label("hybridmap").classes("text-2xl font-bold")
                    ui.button("Dark", on_click=self._turn).props("flat dense")
                self.fields = ui.column().classes("w-full gap-1")
                self._build_fields()
            with ui.column().classes("grow min-w-0"):
                self.status = ui.label("planning ...").classes("text-sm soft")
                self.error = ui.label().classes("wrong whitespace-pre-wrap")
                self.title = ui.label().classes("text-lg font-bold")
                self._build_actions()
                self.view = View()
                self.pins = Pins()
        ui.timer(0.01, self.plan, once=True)

    def _build_actions(self) -> None:
        """What one does with a plan: pin it, share its job, take files along; and read a job from pasted text."""
        with ui.row().classes("gap-2 items-center"):
            ui.button("Pin", on_click=self._pin).props("dense")
            ui.button("Copy link", on_click=self._copy_link).props("dense")
            with ui.dropdown_button("Download", auto_close=True).props("dense"):
                for name in DOWNLOADS:
                    ui.item(name, on_click=lambda name=name: self._download(name))
            ui.button("Import", on_click=self._paste).props("dense")
        with ui.dialog() as self.pasting, ui.card().classes("w-full"):
            ui.label("A job file, a verl launch script or overrides, or a run's log")
            self.pasted = (
                ui.textarea("paste here").classes("w-full").props(f"rows=12 outlined maxlength={MOST_TEXT + 1}")
            )
            self.unread = ui.label().classes("wrong whitespace-pre-wrap")
            ui.button("Read", on_click=self._read_pasted)

    def _paste(self) -> None:
        self.pasting.open()

    def _turn(self) -> None:
        """Dark where it is light; a page as the system says turns dark."""
        self.dark.value = not self.dark.value

    def _pin(self) -> None:
        if self.answer is not None and self.answer.job is not None and self.answer.result is not None:
            self.pins.add(self.answer.job, self.answer.result)

    def _copy_link(self) -> None:
        ui.run_javascript("navigator.clipboard.writeText(location.href)")
        ui.notify("the link of this job is copied")

    async def _download(self, name: str) -> None:
        if self.answer is None or self.answer.job is None or self.answer.result is None:
            return
        try:
            found = await run.io_bound(DOWNLOADS[name], self.answer.job, self.answer.result)
        except HybridmapError as error:
            ui.notify(str(error), type="negative", multi_line=True)
            return
        if found is not None:  # None: the server is being stopped
            file, text = found
            ui.download.content(text, file)

    async def _read_pasted(self) -> None:
        try:
            found = await run.io_bound(form_of_text, self.pasted.value or "", self.form)
        except HybridmapError as error:
            self.unread.set_text(str(error))
            return
        if found is None:
            return
        form, what = found
        self.unread.set_text("")
        self.pasting.close()
        ui.notify(what)
        self.form = form
        self.fields.clear()
        self._build_fields()
        await self.change(form)

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
                    new_value_mode="add-unique",  # any Hugging Face id of a known checkpoint; the job says which are
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
        """Take over a form and plan it: at once, or while somebody types, when they stop."""
        self.form = form
        self.asked += 1
        mine, before_s, self.changed_s = self.asked, self.changed_s, time.monotonic()
        if self.changed_s - before_s < SETTLE_S:
            await asyncio.sleep(SETTLE_S)
        if mine == self.asked:
            await self.plan()

    async def plan(self) -> None:
        """Search in a thread, show the fastest plan, then the one that the job prefers, its runners-up, the frontier.

        A newer change makes an older answer worthless.
        """
        form, mine = self.form, self.asked
        self.status.set_text("planning ...")
        answer = await self.plans.newest(run.io_bound, answer_of, form)
        if mine != self.asked or answer is None:  # None: overtaken, or the server is being stopped
            return
        self.answer = answer
        if answer.job is not None:
            ui.run_javascript(f"history.replaceState(null, '', '?job={link_of(form)}')")
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
        whole = await self.others.newest(run.io_bound, answer_of, form, runners_up=True)
        if mine != self.asked or whole is None:
            return
        if whole.result is not None:
            if whole.result.plan != answer.result.plan:
                self.view.update(answer.job, whole.result)
            self.answer = whole
            self.view.update_runners_up(whole.result)
        points = await self.others.newest(run.io_bound, frontier_of, form)
        if mine == self.asked and points:
            self.view.update_frontier(points, (whole.result or answer.result))


def serve(form: Form, host: str, port: int, show_browser: bool) -> None:
    """Run the page until it is stopped."""

    def index(job: str = "") -> None:
        try:
            Page(form_of_link(job) if job else form).build()
        except HybridmapError as error:
            Page(form).build()
            ui.notify(str(error), type="negative", multi_line=True)

    if host in LOOPBACK:  # a page elsewhere whose name is made to point here gets no answer
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "[::1]"])
    app.add_middleware(SameOrigin)
    ui.page("/")(index)
    ui.run(
        host=host,
        port=port,
        title="hybridmap",
        reload=False,
        show=show_browser,
        favicon=None,
        reconnect_timeout=RECONNECT_S,
    )
