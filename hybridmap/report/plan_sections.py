"""What the page shows of one plan, and its switch changes: placement, timeline and memory."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from hybridmap.report.cluster_svg import cluster_svg, color_of
from hybridmap.report.elements import chart, section, table
from hybridmap.report.groups import group_rows
from hybridmap.table import LABEL
from hybridmap.text.fit import memory_rows, parts_text, peak_terms
from hybridmap.text.notation import generation_text, gib, gpus_text, memory_text, scoring_text, training_text
from hybridmap.text.plan import speed_lines
from hybridmap.text.worked import worked_lines

if TYPE_CHECKING:
    from hybridmap.report.content import Content, Shown


def plan_sections(content: Content) -> list[str]:
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
