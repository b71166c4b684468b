"""Tables and lines for people, at any width: aligned where they fit, else one block a row; no word is ever broken."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LABEL = 12
"""Columns of a label, ``provenance  ``; what follows it is wrapped beside it."""

LEAST_PROSE = 28
"""Columns that a cell of prose needs for a table to stay one."""

GAP = 3
"""Columns between two cells, of a table and of a block."""

_COMMAND = re.compile(r"^(\s*|next\s+)(hybridmap|cd) ")
_BOUND = re.compile(
    r"(?<=\d) (?=%|(?:s|x|GiB|GPUs?|samples?|tokens?|engines?|nodes?)\b)"
    r"|(?<= x) | (?=->)|(?<=->) |(?<=[a-z]) (?=[\d.,]+ s\b)"
)
"""Spaces at which no line ends: between a number and its unit, around an arrow."""


@dataclass
class Table:
    """Cells by row; ``right`` are columns of numbers, ``prose`` those that may be wrapped between words.

    The first ``keys`` columns name a row. Where the table has no room and they are more than one, the last of them is a
    label with a line for each cell behind it, below a line of the others.
    """

    columns: tuple[str, ...]
    right: frozenset[str] = frozenset()
    prose: frozenset[str] = frozenset()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    keys: int = 1

    def add_row(self, *cells: str) -> None:
        """Add one cell for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns: {cells}")
        self.rows.append(cells)

    def without_empty_columns(self) -> Table:
        """The table less the columns in which no row says anything."""
        kept = [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]
        rows = [tuple(row[i] for i in kept) for row in self.rows]
        keys = sum(i < self.keys for i in kept)
        return Table(tuple(self.columns[i] for i in kept), self.right, self.prose, rows, keys)


def table_lines(table: Table, width: int) -> list[str]:
    """The table within ``width`` columns, aligned if it fits; its head is the first line then, else a block a row."""
    table = table.without_empty_columns()
    widths = _widths(table, width)
    if widths is not None:
        return _aligned(table, widths)
    return _nested(table, width) if table.keys > 1 else _stacked(table, width)


def _widths(table: Table, width: int) -> list[int] | None:
    """Columns of each cell where all but prose stand on one line each; ``None`` where they do not within ``width``."""
    longest, least = [], []
    for i, name in enumerate(table.columns):
        cells = [name, *(row[i] for row in table.rows)]
        longest.append(max(_size(cell) for cell in cells))
        words = max((_size(word) for cell in cells for word in _bound(cell).split(" ")), default=0)
        least.append(min(longest[-1], max(words, LEAST_PROSE)) if name in table.prose else longest[-1])
    spare = width - sum(least) - GAP * (len(least) - 1)
    if spare < 0:
        return None
    for i in range(len(least)):
        more = min(spare, longest[i] - least[i])
        least[i] += more
        spare -= more
    return least


def _aligned(table: Table, widths: Sequence[int]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return (" " * GAP).join(
            " " * (size - _size(cell)) + cell if name in table.right else cell + " " * (size - _size(cell))
            for name, size, cell in zip(table.columns, widths, cells, strict=True)
        )

    out = [line(table.columns), "─" * (sum(widths) + GAP * (len(widths) - 1))]
    for row in table.rows:
        cells = [_wrap(cell, size) if cell else [""] for cell, size in zip(row, widths, strict=True)]
        out += [line(parts) for parts in zip_longest(*cells, fillvalue="")]
    return [text.rstrip() for text in out]


def _stacked(table: Table, width: int) -> list[str]:
    """One block a row under its first cell; where that says nothing, the row belongs to the block above."""
    out = []
    for row in table.rows:
        if row[0]:
            out.append(f"{table.columns[0]} {row[0]}".strip())
        pairs = zip(table.columns[1:], row[1:], strict=True)
        out += _filled([f"{name} {cell}".strip() for name, cell in pairs if cell not in ("", "-")], width)
    return out


def _nested(table: Table, width: int) -> list[str]:
    """Rows below the keys that they share; a row's own key is a label, with a line for each of its cells."""
    outer, cells = table.keys - 1, table.columns[table.keys :]
    label = max((_size(row[outer]) for row in table.rows), default=0) + GAP
    name = max((_size(text) for text in cells), default=0) + 2
    out, shared = [], [""] * outer
    for row in table.rows:
        if any(row[:outer]):  # a key that is left out is that of the row above
            shared = [cell or above for cell, above in zip(row[:outer], shared, strict=True)]
            heads = [f"{key} {cell}".strip() for key, cell in zip(table.columns[:outer], shared, strict=True) if cell]
            out.append((" " * GAP).join(heads))
        said = [pair for pair in zip(cells, row[table.keys :], strict=True) if pair[1] not in ("", "-")]
        for i, (key, cell) in enumerate(said or [("", "-")]):
            own = row[outer] if i == 0 else ""
            first = f"  {own}{' ' * (label - _size(own))}{key}{' ' * (name - _size(key))}"
            out += _wrap(cell, width, first, " " * _size(first))
    return out


def _filled(parts: Sequence[str], width: int) -> list[str]:
    """Parts side by side, as many as a line holds, each whole where it can be."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + GAP + _size(part) <= width:
            lines[-1] += " " * GAP + part
        else:
            lines += _wrap(part, width, "  ", "    ")
    return lines


def wrapped(text: str, width: int) -> list[str]:
    """Lines of ``text`` within ``width`` columns where words allow it; a command to type stays on one."""
    out = []
    for line in text.split("\n"):
        if len(line) <= width or _COMMAND.match(line):
            out.append(line)
        elif line[LABEL - 2 : LABEL] == "  " and line[LABEL] != " ":
            first, *more = _wrap(line[LABEL:], width - LABEL)
            out += [line[:LABEL] + first, *(" " * LABEL + rest for rest in more)]
        else:
            indent = line[: len(line) - len(line.lstrip())]
            out += _wrap(line.lstrip(), width, indent, indent + "  ")
    return out


def _wrap(text: str, width: int, first: str = "", later: str = "") -> list[str]:
    lines = textwrap.wrap(
        _bound(text),
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _bound(text: str) -> str:
    return _BOUND.sub("\N{NO-BREAK SPACE}", text)


def _size(text: str) -> int:
    """Columns of a terminal that a text takes: Chinese characters take two."""
    from rich.cells import cell_len

    return cell_len(text)
