"""The cluster to scale, as an inline SVG: nodes, their GPUs, which pool has them, and which roles live there."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from hybridmap.report.colors import DEEP, POOLS

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Plan, Pool

GPU, GAP, PER_LINE = 22, 4, 8
"""Side of a GPU, space between, GPUs of a node side by side, in pixels of the drawing."""

TITLE = 13
"""Height of a node's name above its GPUs."""

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
    return POOLS[names.index(name) % len(POOLS)]


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
    box_w, box_h = columns * (GPU + GAP) + GAP, lines * (GPU + GAP) + GAP + TITLE
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
            f'<text x="{x0 + GAP}" y="{y0 + TITLE - 2:.0f}" class="node-name">'
            f"{node if coarse else f'node {node}'}</text>"
        )
        gpus = [node * per_node] if coarse else range(node * per_node, (node + 1) * per_node)
        for i, gpu in enumerate(gpus):
            x1, y1 = x0 + GAP + (i % columns) * (GPU + GAP), y0 + TITLE + GAP + (i // columns) * (GPU + GAP)
            name = f"node {node}" if coarse else f"GPU {gpu} of node {node}"
            parts.append(_gpu(plan, _pool_at(pools, gpu), name, None if coarse else gpu, x1, y1))
    return "".join(parts), y + -(-nodes // across) * (box_h + GAP)


def _pool_at(pools: list[Pool], gpu: int) -> Pool | None:
    return next((p for p in pools if p.first_gpu <= gpu < p.first_gpu + p.num_gpus), None)


def _gpu(plan: Plan, pool: Pool | None, name: str, gpu: int | None, x: float, y: float) -> str:
    """A square with the pool's letter and, below it, the rank there: its place among the pool's GPUs."""
    fill = "transparent" if pool is None else color_of(plan, pool.name)
    rank = "" if pool is None or gpu is None else f"{gpu - pool.first_gpu}"
    at = f", rank {rank} of its pool" if rank else ""
    what = "unused" if pool is None else f"pool {pool.name}: {', '.join(pool.roles) or 'generation'}{at}"
    ink = "#ffffff" if fill in DEEP else "#1b1f24"
    letter = "" if pool is None else pool.name[:2]
    words = "".join(
        f'<text x="{x + GPU / 2:.0f}" y="{y + dy}" class="{kind}" fill="{ink}">{escape(text)}</text>'
        for text, dy, kind in ((letter, 10, "pool-name"), (rank, 19, "rank"))
        if text
    )
    return (
        f'<g><title>{escape(name)}, {escape(what)}</title><rect x="{x}" y="{y}" width="{GPU}" height="{GPU}" rx="3" '
        f'fill="{fill}" stroke="#59636e" stroke-width="0.6" class="gpu"/>{words}</g>'
    )
