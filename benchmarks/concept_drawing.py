"""Pieces of the pictures in ``docs/concepts.md``: an SVG, words and boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

INK, SOFT, WIDTH = "#1b1f24", "#59636e", 760


def picture(body: Sequence[str], height: float, label: str) -> str:
    """An SVG on white ground, to be read in dark pages too."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" aria-label="{label}">'
        f'<rect width="100%" height="100%" rx="8" fill="#ffffff"/>{"".join(body)}</svg>\n'
    )


def words(x: float, y: float, text: str, more: str = "") -> str:
    """A text in the ink of the pictures, or as ``more`` says."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{INK}" {more}>{text}</text>'


def box(x: float, y: float, width: float, height: float, color: str) -> str:
    """A filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height}" rx="2" fill="{color}"/>'


def line(x: float, y: float, to_x: float, to_y: float, more: str = "") -> str:
    """A straight line in ink, or as ``more`` says."""
    return f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" stroke="{INK}" {more}/>'


def legend(names: Sequence[tuple[str, str]], left: float, step: float = 105) -> list[str]:
    """Each name beside its colour, in one row at the top."""
    return [
        part
        for i, (name, color) in enumerate(names)
        for part in (box(left + step * i, 14, 12, 12, color), words(left + step * i + 17, 24, name))
    ]
