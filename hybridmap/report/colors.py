"""One meaning for each colour of a page: stages and roles have hues, evidence has one hue's depth, the rest is grey.

Hues are those of Okabe and Ito, and of Tol's muted scheme: told apart with any colour blindness, on light and dark.
"""

from __future__ import annotations

STAGES = {
    "generation": "#0072b2",
    "training": "#d55e00",
    "preparation": "#e69f00",
    "transition": "#cc79a7",
    "weight_sync": "#8c564b",
    "other": "#8a8f98",
}
ROLES = {
    "actor": "#44aa99",
    "critic": "#aa4499",
    "reference": "#999933",
    "reward": "#56b4e9",
    "cost": "#ddcc77",
    "generator": "#117733",
}
EVIDENCE = {
    "measured": "#2b4c7e",
    "published": "#47689b",
    "interpolated": "#6c8ab8",
    "fitted": "#97aed0",
    "analytic": "#c0cee2",
    "assumed": "#dfe5ee",
}
"""The surer, the deeper."""
POOLS = ("#b8bec7", "#7d8590", "#d9dde2", "#5d646e")
"""Greys: a pool is known by its letter, its grey only draws the border between two."""
DEEP = POOLS[1::2]
"""Greys on which text is white."""
FASTER, SLOWER = "#a6acb5", "#6b727c"
LINE, MARK = "#6c7a8c", "#b58900"


def role_color(role: str) -> str:
    """The colour of a role; of one that no algorithm of ours has, grey."""
    return ROLES.get(role, "#767d87")
