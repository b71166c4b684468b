"""The page: sections of HTML, every text escaped, and the data for its charts as JSON."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from hybridmap.report import figures
from hybridmap.report.cluster_svg import cluster_svg, color_of
from hybridmap.report.groups import group_rows
from hybridmap.report.memory_figure import memory_over_time
from hybridmap.report.packed import packed, packed_plotly
from hybridmap.report.side_by_side import side_by_side, stage_rows
from hybridmap.table import LABEL
from hybridmap.text.fit import memory_rows, parts_text, peak_terms
from hybridmap.text.notation import (
    about,
    generation_text,
    gib,
    gpus_text,
    job_title,
    memory_text,
    percent,
    scoring_text,
    training_text,
)
from hybridmap.text.plan import interval_s, interval_source, speed_lines
from hybridmap.text.worked import worked_lines
from simulator.uncertainty import range_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridmap.report.content import Content, Shown

NOTHING = ("", "-")
"""Cells that say nothing."""

MOST_ON_A_PHONE = 3
"""Columns of a table that a phone shows as one."""


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
        "BODY": "".join([_summary(content), _switch(content), *_plans(content), *_sections(content)]),
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


def script_json(document: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> str:
    """A table; cells are plain text, columns that say nothing are left out. A phone stacks more than three columns."""
    given = [list(row) for row in rows]
    kept = [i for i in range(len(columns)) if i == 0 or any(row[i] not in NOTHING for row in given)]
    columns, given = [columns[i] for i in kept], [[row[i] for i in kept] for row in given]
    head = "".join(f'<th scope="col"{_class(c, numbers)}>{escape(c)}</th>' for c in columns)
    body = "".join(
        "<tr>" + "".join(_cell(c, cell, numbers) for c, cell in zip(columns, row, strict=True)) + "</tr>"
        for row in given
    )
    shape = ' class="stacks"' if len(columns) > MOST_ON_A_PHONE else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(columns[0], quote=True)} table">'
        f"<table{shape}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(column: str, cell: str, numbers: Sequence[str]) -> str:
    """A cell that knows its column's name, which a phone shows beside it."""
    return f'<td{_class(column, numbers, cell)} data-label="{escape(column, quote=True)}">{escape(cell)}</td>'


def _class(column: str, numbers: Sequence[str], cell: str = "head") -> str:
    names = [name for name, given in (("number", column in numbers), ("none", cell in NOTHING)) if given]
    return f' class="{" ".join(names)}"' if names else ""


def section(key: str, title: str, body: str, about: str = "") -> str:
    """A section with its heading, and a line of what it shows."""
    told = f'<p class="about">{escape(about)}</p>' if about else ""
    return f'<section id="{key}"><h2>{escape(title)}</h2>{told}{body}</section>'


def chart(key: str, label: str) -> str:
    """An empty place that the script draws a chart in."""
    return f'<div class="chart" id="chart-{key}" role="img" aria-label="{escape(label, quote=True)}"></div>'


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


def _plans(content: Content) -> list[str]:
    """What the switch changes: a block for each plan, and the charts they share."""
    blocks = "".join(_plan_block(each, i == 0) for i, each in enumerate(content.shown))
    compared = " The measured run is below each predicted pool." if content.measured is not None else ""
    return [
        section(
            "placement",
            "Placement",
            blocks,
            "The nodes, their GPUs, and who has them; the number is the rank in its pool.",
        ),
        section(
            "timeline",
            "One iteration",
            chart("gantt", "Gantt chart of the iteration, one row for each role of a pool"),
            f"Every call on its pool. Hover or tap for compute, communication and evidence.{compared}",
        ),
        section(
            "memory",
            "Memory over the iteration",
            "".join(_memory_block(each, i == 0) for i, each in enumerate(content.shown)),
            "By role, on the fullest GPU of each pool: what a role always keeps, and hatched what its call needs on "
            "top. The lines are what a plan may use and what a process sees; between them lies the headroom.",
        ),
    ]


def _plan_block(shown: Shown, visible: bool) -> str:
    plan = shown.plan
    legend = "".join(
        f'<li><span class="swatch" style="background:{color_of(plan, pool.name)}"></span>pool {escape(pool.name)}, '
        f"GPUs {gpus_text(pool)}: {escape(', '.join(pool.roles) or 'generation')}</li>"
        for pool in plan.pools
    )
    rows = []
    for entry in plan.roles:
        texts = (training_text(entry.training), generation_text(entry.generation), scoring_text(entry.inference))
        rows.append((entry.role, entry.pool, *texts, ", ".join(entry.offload) or "-"))
    layouts = table(("role", "pool", "training", "generation", "scoring", "offload"), rows)
    told = [*worked_lines(plan), *speed_lines(shown.timeline)]
    lines = "".join(f"<dt>{escape(line[:LABEL].strip())}</dt><dd>{escape(line[LABEL:])}</dd>" for line in told)
    hidden = "" if visible else " hidden"
    drawing = cluster_svg(plan, shown.facts) if visible else f'<div data-drawing="{shown.key}"></div>'
    groups = [(pool.name, *row) for pool in plan.pools for row in group_rows(plan, pool)]
    who = table(("pool", "role", "group", "GPUs"), groups)
    return (
        f'<div class="plan" data-plan="{shown.key}"{hidden}>{drawing}'
        f'<ul class="legend">{legend}</ul>{layouts}<details><summary>Groups of ranks</summary>{who}</details>'
        f'<dl class="told">{lines}</dl></div>'
    )


def _memory_block(shown: Shown, visible: bool) -> str:
    parts = []
    for i, pool in enumerate(shown.plan.pools):
        rows = []
        for row in memory_rows(shown.plan, pool, shown.facts):
            whole, classes = parts_text(row["classes"])
            rows.append((row["role"] or "any", row["when"], whole, classes))
        terms = peak_terms(shown.plan, pool, shown.facts)
        (role, name), size = max(terms.items(), key=lambda item: item[1])
        peak = shown.timeline.memory[pool.name]
        whose = f"{role}'s {name}" if role else name
        parts.append(
            chart(f"memory-{shown.key}-{i}", f"Memory of pool {pool.name} over the iteration, by role")
            + f"<details><summary>pool {escape(pool.name)}: {memory_text(peak)}, in "
            f"{escape(peak.peak_call)}, largest {escape(whose)} ({gib(size)} GiB)</summary>"
            f"{table(('role', 'when', 'GiB', 'of which'), rows, ('GiB',))}</details>"
        )
    return f'<div class="plan" data-plan="{shown.key}"{"" if visible else " hidden"}>{"".join(parts)}</div>'


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
            "gantt": figures.gantt(each.timeline, content.measured if each is best else None),
            **{
                f"memory-{each.key}-{i}": memory_over_time(each.plan, pool, each.timeline, each.facts)
                for i, pool in enumerate(each.plan.pools)
            },
        }
        for each in content.shown
    }
    return {"fixed": fixed, "byPlan": by_plan}
