"""Brace expansion: ``a{b,c}`` is two words and ``{1..4}`` four, before anything else of a word is expanded."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridmap.shell.syntax import Node
    from hybridmap.shell.values import Budget

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?|([A-Za-z])\.\.([A-Za-z])")
MOST_WORDS = 10_000


def brace_expanded(word: Node, budget: Budget) -> list[Node]:
    """The words that a word with braces stands for; itself where it has none."""
    parts: list[Node] = word.get("Parts", [])
    if not any(part["Type"] == "Lit" and "{" in part.get("Value", "") for part in parts):
        return [word]
    pieces: list[str | Node] = []
    for part in parts:
        pieces += re.findall(r"\\.|.", part.get("Value", ""), re.DOTALL) if part["Type"] == "Lit" else [part]
    found = _expanded(pieces, budget)
    return [word] if len(found) == 1 else [{"Type": "Word", "Parts": _parts(each)} for each in found]


def _parts(pieces: list[str | Node]) -> list[Node]:
    """Characters that follow one another as one literal again."""
    out: list[Node] = []
    for is_text, run in groupby(pieces, lambda piece: isinstance(piece, str)):
        if is_text:
            out.append({"Type": "Lit", "Value": "".join(map(str, run))})
        else:
            out += [piece for piece in run if not isinstance(piece, str)]
    return out


def _expanded(pieces: list[str | Node], budget: Budget) -> list[list[str | Node]]:
    for start, piece in enumerate(pieces):
        if piece != "{":
            continue
        ends = _choices(pieces, start)
        if ends is None:
            continue
        end, choices = ends
        inner = [each for choice in choices for each in _expanded(choice, budget)]
        rests = _expanded(pieces[end + 1 :], budget)
        budget.spend(len(inner) * len(rests) * (len(pieces) + 1))
        return [[*pieces[:start], *each, *rest] for each in inner for rest in rests]
    return [pieces]


def _choices(pieces: list[str | Node], start: int) -> tuple[int, list[list[str | Node]]] | None:
    """Where the brace that opens at ``start`` ends, and what may stand in it; ``None`` if it is no expansion."""
    depth = 0
    choices: list[list[str | Node]] = [[]]
    for at in range(start, len(pieces)):
        piece = pieces[at]
        depth += (piece == "{") - (piece == "}")
        if depth == 0:
            return (at, choices) if len(choices) > 1 else _range(choices[0], at)
        if depth == 1 and piece == ",":
            choices.append([])
        elif at > start:
            choices[-1].append(piece)
    return None


def _range(inside: list[str | Node], end: int) -> tuple[int, list[list[str | Node]]] | None:
    found = _RANGE.fullmatch("".join(piece if isinstance(piece, str) else "$" for piece in inside))
    if found is None:
        return None
    if found[4]:
        first, last, step = ord(found[4]), ord(found[5]), 1
    else:
        first, last, step = int(found[1]), int(found[2]), abs(int(found[3] or 1)) or 1
    if abs(last - first) // step >= MOST_WORDS:
        return None
    numbers = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
    return end, [[chr(n) if found[4] else str(n)] for n in numbers]
