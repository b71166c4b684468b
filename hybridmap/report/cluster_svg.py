"""The cluster, as inline SVGs: nodes, their GPUs, which pool has them, and which roles live there."""

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

SCALES = ((8, 1.5), (24, 1.0))
"""Pixels of the screen for one of the drawing, for so many nodes at most; for more of them ``LEAST_SCALE``."""

LEAST_SCALE = 0.66

MOST_GPUS = 512
"""Beyond it a node is drawn as one square."""

MOST_SQUARES = 128
"""Of a device kind; beyond it a square is several nodes, in the colour of the first one's pool."""


def cluster_svg(plan: Plan, facts: Facts) -> str:
    """One drawing a node, as many side by side as a screen holds, with a label for people who cannot see them."""
    parts = []
    groups = {kind: facts.on(kind).group for kind in facts.device_types}
    nodes = sum(group.nodes for group in groups.values())
    scale = next((scale for most, scale in SCALES if nodes <= most), LEAST_SCALE)
    for kind, group in groups.items():
        if len(groups) > 1:
            parts.append(f'<div class="kind">{escape(kind)}</div>')
        parts += _kind(plan, kind, group.nodes, group.gpus_per_node, scale)
    label = escape(description(plan), quote=True)
    return f'<div class="cluster" role="img" aria-label="{label}">{"".join(parts)}</div>'


def description(plan: Plan) -> str:
    """The drawing in words."""
    return "; ".join(f"pool {p.name}: {p.num_gpus} GPUs, {', '.join(p.roles) or 'generation'}" for p in plan.pools)


def color_of(plan: Plan, name: str) -> str:
    """The colour of a pool."""
    names = [pool.name for pool in plan.pools]
    return POOLS[names.index(name) % len(POOLS)]


def _kind(plan: Plan, kind: str, nodes: int, per_node: int, scale: float) -> list[str]:
    """All nodes of one device kind."""
    pools = [pool for pool in plan.pools if pool.device == kind]
    coarse = nodes * per_node > MOST_GPUS
    each = max(1, -(-nodes // MOST_SQUARES)) if coarse else 1
    columns = 1 if coarse else min(per_node, PER_LINE)
    lines = 1 if coarse else -(-per_node // columns)
    width, height = columns * (GPU + GAP) + GAP, lines * (GPU + GAP) + GAP + TITLE
    parts = []
    for node in range(0, nodes, each):
        gpus = [node * per_node] if coarse else range(node * per_node, (node + 1) * per_node)
        squares = []
        for i, gpu in enumerate(gpus):
            x, y = GAP + (i % columns) * (GPU + GAP), TITLE + GAP + (i // columns) * (GPU + GAP)
            several = f"nodes {node} to {min(node + each, nodes) - 1}"
            name = (several if each > 1 else f"node {node}") if coarse else f"GPU {gpu} of node {node}"
            squares.append(_gpu(plan, _pool_at(pools, gpu), name, None if coarse else gpu, x, y))
        parts.append(
            f'<svg viewBox="0 0 {width} {height}" width="{scale * width:.0f}" height="{scale * height:.0f}">'
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="4" fill="none" stroke="#8a8f98" '
            f'class="node"/><text x="{GAP}" y="{TITLE - 2}" class="node-name">'
            f"{node if coarse else f'node {node}'}</text>{''.join(squares)}</svg>"
        )
    return parts


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
