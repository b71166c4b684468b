"""The cluster to scale, as an inline SVG: nodes, their GPUs, which pool has them, and which roles live there."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Plan, Pool

POOL_COLORS = ("#2f7ed8", "#e8a33d", "#54a24b", "#c0504d", "#8e5ea2", "#439894", "#b79a20", "#d67195")
GPU, GAP, PER_LINE = 18, 4, 8
"""Side of a GPU, space between, GPUs of a node side by side, in pixels of the drawing."""

ACROSS = 8
"""Nodes side by side."""

MOST_GPUS = 1024
"""Beyond it a node is drawn as one square."""


def cluster_svg(plan: Plan, facts: Facts) -> str:
    """The drawing, with a title for people who cannot see it."""
    parts, y = [], 0.0
    most = max(facts.on(kind).group.nodes for kind in facts.device_types)
    width = min(most, ACROSS) * (_node_width(facts) + GAP)
    for kind in facts.device_types:
        there = facts.on(kind)
        body, y = _kind(plan, kind, there.group.nodes, there.group.gpus_per_node, y, width, len(facts.device_types) > 1)
        parts.append(body)
    label = escape(description(plan), quote=True)
    return (
        f'<svg viewBox="0 0 {width:.0f} {max(y, GPU):.0f}" style="max-width:{1.6 * width:.0f}px" role="img" '
        f'aria-label="{label}" class="cluster">'
        f"<title>{label}</title>{''.join(parts)}</svg>"
    )


def description(plan: Plan) -> str:
    """The drawing in words."""
    return "; ".join(f"pool {p.name}: {p.num_gpus} GPUs, {', '.join(p.roles) or 'generation'}" for p in plan.pools)


def color_of(plan: Plan, name: str) -> str:
    """The colour of a pool."""
    names = [pool.name for pool in plan.pools]
    return POOL_COLORS[names.index(name) % len(POOL_COLORS)]


def _node_width(facts: Facts) -> float:
    widest = max(facts.on(kind).group.gpus_per_node for kind in facts.device_types)
    columns = 1 if facts.num_gpus > MOST_GPUS else min(widest, PER_LINE)
    return columns * (GPU + GAP) + GAP


def _kind(plan: Plan, kind: str, nodes: int, per_node: int, y: float, width: float, named: bool) -> tuple[str, float]:
    """All nodes of one device kind, line by line; and where the next kind begins."""
    pools = [pool for pool in plan.pools if pool.device == kind]
    coarse = nodes * per_node > MOST_GPUS
    columns = 1 if coarse else min(per_node, PER_LINE)
    lines = 1 if coarse else -(-per_node // columns)
    box_w, box_h = columns * (GPU + GAP) + GAP, lines * (GPU + GAP) + GAP
    parts = []
    if named:
        parts.append(f'<text x="0" y="{y + 12:.0f}" class="kind">{escape(kind)}</text>')
        y += 18
    across = max(1, round(width / (box_w + GAP)))
    for node in range(nodes):
        x0, y0 = (node % across) * (box_w + GAP), y + (node // across) * (box_h + GAP)
        parts.append(
            f'<rect x="{x0}" y="{y0}" width="{box_w}" height="{box_h}" rx="4" fill="none" stroke="#8a8f98" '
            'class="node"/>'
        )
        gpus = [node * per_node] if coarse else range(node * per_node, (node + 1) * per_node)
        for i, gpu in enumerate(gpus):
            x1, y1 = x0 + GAP + (i % columns) * (GPU + GAP), y0 + GAP + (i // columns) * (GPU + GAP)
            parts.append(_gpu(plan, _pool_at(pools, gpu), f"node {node}" if coarse else f"GPU {gpu}", x1, y1))
    return "".join(parts), y + -(-nodes // across) * (box_h + GAP)


def _pool_at(pools: list[Pool], gpu: int) -> Pool | None:
    return next((p for p in pools if p.first_gpu <= gpu < p.first_gpu + p.num_gpus), None)


def _gpu(plan: Plan, pool: Pool | None, name: str, x: float, y: float) -> str:
    fill = "transparent" if pool is None else color_of(plan, pool.name)
    what = "unused" if pool is None else f"pool {pool.name}: {', '.join(pool.roles) or 'generation'}"
    return (
        f'<rect x="{x}" y="{y}" width="{GPU}" height="{GPU}" rx="3" fill="{fill}" stroke="#59636e" '
        'stroke-width="0.6" class="gpu">'
        f"<title>{escape(name)}, {escape(what)}</title></rect>"
    )
