"""The page: sections of HTML, every text escaped, and the data for its charts as JSON."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from hybridmap.report import figures
from hybridmap.report.cluster_svg import cluster_svg
from hybridmap.report.elements import chart, script_json, section, table
from hybridmap.report.gantt import gantt
from hybridmap.report.memory_figure import memory_over_time
from hybridmap.report.packed import packed, packed_plotly
from hybridmap.report.plan_sections import plan_sections
from hybridmap.report.side_by_side import side_by_side, stage_rows
from hybridmap.text.notation import about, job_title, percent
from hybridmap.text.plan import interval_s, interval_source
from simulator.uncertainty import range_of

if TYPE_CHECKING:
    from hybridmap.report.content import Content


def page(content: Content) -> str:
    """The whole document."""
    assets = files("hybridmap.report")
    library, num_bytes = packed_plotly()
    charts, num_charted = packed(script_json(_charts(content)))
    drawings, num_drawn = packed(script_json({s.key: cluster_svg(s.plan, s.facts) for s in content.shown[1:]}))
    template = (assets / "page.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": escape(job_title(content.facts)),
        "STYLE": (assets / "style.css").read_text(encoding="utf-8"),
        "BODY": "".join([_summary(content), _switch(content), *plan_sections(content), *_sections(content)]),
        "DATA": charts,
        "CHARTED": str(num_charted),
        "SCRIPT": "".join((assets / name).read_text(encoding="utf-8") for name in ("labels.js", "script.js")),
        "PLOTLY": library,
        "BYTES": str(num_bytes),
        "DRAWINGS": drawings,
        "DRAWN": str(num_drawn),
        "PLAN": content.file.digest_now(),
    }
    return re.sub("@@([A-Z]+)@@", lambda place: parts[place[1]], template)


def _proof_card(content: Content) -> tuple[str, str, str]:
    """What the search proved; of an edited plan or other prices it proved nothing."""
    file = content.file
    if content.notes:
        return "proof", "no longer", "plan the job again"
    return "proof", file.status, f"gap {percent(file.gap)}, bound {file.bound_s:,.2f} s"


def _summary(content: Content) -> str:
    timeline = content.best.timeline
    low, high = interval_s(timeline)
    per_gpu = timeline.tokens_per_s / timeline.num_gpus
    cards = [
        ("iteration", f"{timeline.iteration_s:,.2f} s", f"90 %: {about(low)} to {about(high)} s"),
        ("tokens per second", f"{timeline.tokens_per_s:,.0f}", f"{per_gpu:,.0f} per GPU"),
        ("GPUs", f"{timeline.num_gpus:,}", f"of {content.facts.num_gpus:,}"),
        _proof_card(content),
    ]
    if content.measured is not None:
        off = content.measured.iteration_s / timeline.iteration_s - 1
        cards.append(
            ("measured", f"{content.measured.iteration_s:,.2f} s", f"{100 * off:+.1f} % against the prediction")
        )
    boxes = "".join(
        f'<div class="card"><div class="what">{escape(what)}</div><div class="value">{escape(value)}</div>'
        f'<div class="more">{escape(more)}</div></div>'
        for what, value, more in cards
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in content.notes)
    return f'<div class="cards">{boxes}</div>{notes}'


def _switch(content: Content) -> str:
    """Which plan the next sections show: radio buttons, so arrow keys move between them."""
    options = "".join(
        f'<label><input type="radio" name="plan" value="{each.key}"{" checked" if i == 0 else ""}>'
        f"<span>{'best: ' if i == 0 else ''}{escape(each.name)}</span></label>"
        for i, each in enumerate(content.shown)
    )
    return f'<fieldset id="switch"><legend>Plan shown</legend>{options}</fieldset>'


def _sections(content: Content) -> list[str]:
    out = [
        section(
            "stages",
            "Stages",
            chart("stages", "Seconds of each stage, one bar a plan"),
            "Seconds along the critical path; a plan's bar ends at its iteration time.",
        )
    ]
    if len(content.shown) > 1:
        columns, rows = side_by_side(content)
        why = "".join(f"<li>{escape(f'{each.name}: {each.why}')}</li>" for each in content.shown[1:])
        out.append(section("others", "Plans side by side", table(columns, rows) + f"<ul>{why}</ul>"))
    if content.points:
        out.append(
            section(
                "frontier",
                "More or fewer GPUs",
                chart("frontier", "Iteration time against GPUs") + _frontier_table(content),
            )
        )
    if content.what_if is not None:
        out.append(section("what-if", "What if", chart("what-if", "Iteration time under other settings")))
    if content.sensitivity:
        about = "The plan priced again with one family of prices off by its 90 % half-width; layouts stay."
        out.append(section("sensitivity", "Sensitivity", chart("sensitivity", "Iteration time by error"), about))
    return [*out, _provenance(content), _job(content)]


def _frontier_table(content: Content) -> str:
    numbers = ("GPUs", "iteration", "tokens/s", "per GPU", "cost")
    with_cost = any(p.cost_per_iteration is not None for p in content.points)
    columns = [c for c in (*numbers, "placement", "proof") if with_cost or c != "cost"]
    rows = []
    for p in content.points:
        cells = {
            "GPUs": f"{p.num_gpus:,}",
            "iteration": f"{p.iteration_s:,.2f} s",
            "tokens/s": f"{p.tokens_per_s:,.0f}",
            "per GPU": f"{p.tokens_per_s_per_gpu:,.0f}",
            "placement": p.plan.placement,
            "cost": "" if p.cost_per_iteration is None else f"{p.cost_per_iteration:,.4f}",
            "proof": "proven" if p.proven else f"gap {percent(p.gap)}",
        }
        rows.append([cells[c] for c in columns])
    return table(columns, rows, numbers)


# Long by the parts of a table, written in turn.
def _provenance(content: Content) -> str:
    timeline = content.best.timeline
    low, high = interval_s(timeline)
    spread = range_of(timeline.cluster)
    shares = ", ".join(f"{percent(share)} {name}" for name, share in timeline.basis.items() if share >= 0.0005)
    lines = [f"The best plan's iteration rests on: {shares}."]
    lines.append(
        f"Nine in ten of runs like the {spread.rows} published ones of {spread.families} families (model, device and "
        f"engine release, each left out of what constants were fitted on) take {spread.low:.2f} to {spread.high:.2f} "
        "times what is predicted."
    )
    lines.append(f"90 % interval {low:,.1f} to {high:,.1f} s, from {interval_source(timeline)}.")
    engines = content.job.document["engines"]
    made = [
        ("hybridmap", content.file.hybridmap_version),
        ("profile data", content.file.facts_hash[:16]),
        ("devices", ", ".join(content.facts.device_types)),
        ("training engine", str(engines["training"])),
        ("generation engine", str(engines["generation"])),
        ("seed", str(content.file.seed)),
        ("searched", content.file.searched.placement),
        ("objective", content.file.objective),
    ]
    body = (
        table(("stage", "seconds", "90 % interval", "rests on"), stage_rows(timeline), ("seconds", "90 % interval"))
        + chart("provenance", "Seconds by kind of evidence")
        + "".join(f"<p>{escape(line)}</p>" for line in lines)
        + table(("made from", "value"), made)
    )
    about = (
        "Measured and published numbers, values interpolated between measured ones, constants fitted on measured "
        "times, rules without a measurement, and what is assumed or carried over from another part or engine."
    )
    return section("provenance", "Provenance of the numbers", body, about)


def _job(content: Content) -> str:
    text = yaml.safe_dump(json.loads(json.dumps(content.job.document)), sort_keys=False, width=100)
    body = f'<button type="button" id="copy">Copy</button><pre tabindex="0" id="job-text">{escape(text)}</pre>'
    return section("job", "The job", body, "In normal form, every default written out.")


def _charts(content: Content) -> dict[str, Any]:
    best = content.best
    fixed: dict[str, Any] = {
        "stages": figures.stages(content.shown, content.measured),
        "provenance": figures.provenance(best),
    }
    if content.sensitivity:
        fixed["sensitivity"] = figures.sensitivity(content.sensitivity, best.timeline.iteration_s)
    if content.points:
        fixed["frontier"] = figures.frontier(content.points, best.timeline.num_gpus, best.timeline.iteration_s)
    if content.what_if is not None:
        fixed["what-if"] = figures.what_if(content.what_if)
    by_plan = {
        each.key: {
            "gantt": gantt(each.timeline, content.measured if each is best else None),
            **{
                f"memory-{each.key}-{i}": memory_over_time(each.plan, pool, each.timeline, each.facts)
                for i, pool in enumerate(each.plan.pools)
            },
        }
        for each in content.shown
    }
    return {"fixed": fixed, "byPlan": by_plan}
