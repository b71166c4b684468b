"""Pieces of HTML that pages are made of, every text escaped."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NOTHING = ("", "-")
"""Cells that say nothing."""

MOST_ON_A_PHONE = 3
"""Columns of a table that a phone shows as one."""


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
